"""The service as it is run: several processes, kills, stops, overload. None can import torch."""

import io
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from handmade import png, rows_of, samples
from services import NEEDS_CURL, client_of, service

import density_softmax as ds
from density_softmax.cli.service import serve
from density_softmax.errors import UserError
from density_softmax.serve.predictor import Predictor
from density_softmax.service.process import Supervisor, bind
from density_softmax.service.settings import Settings


def ask(url, rows=((1.5, 2.0, 3.0),), timeout=30):
    body = json.dumps({"rows": list(rows)}).encode()
    request = Request(f"{url}/predict", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def monitor(url):
    with urlopen(f"{url}/monitor", timeout=30) as answer:
        return json.load(answer)


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def workers(process):
    """The process ids of the workers of a service."""
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(p) for p in pids if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def test_a_killed_worker_is_replaced_and_its_monitor_goes_on(table_file, tmp_path):
    options = ("--workers", 2, "--threads", 1, "--state", tmp_path / "state")
    x = samples(Predictor(table_file), 40, seed=2)[0]
    with service(table_file, *options) as (url, process):
        wait_for(lambda: len(list((tmp_path / "state").glob("*.json"))) == 2)
        expected = ask(url, rows_of(x))["predictions"]
        for _ in range(10):
            assert ask(url, rows_of(x))["predictions"] == expected
        first = workers(process)
        assert len(first) == 2
        time.sleep(0.2)  # requests are counted after they are answered
        os.kill(first[0], signal.SIGKILL)
        for _ in range(10):
            assert ask(url, rows_of(x))["predictions"] == expected
        wait_for(lambda: len(set(workers(process)) - set(first)) == 1)
        wait_for(lambda: monitor(url)["monitor"]["inputs"] == 840)
        assert monitor(url)["replicas"] == 2
        with urlopen(f"{url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert 'density_softmax_requests_total{endpoint="predict",status="200"} 21.0' in text
    with client_of(table_file, state=str(tmp_path / "state"), replica=2) as client:
        assert client.get("/monitor").json()["monitor"]["inputs"] == 840


def answered_or_refused(url, rows):
    """The number of answers; 0 if the service says that it has too much to do."""
    try:
        return len(ask(url, rows)["predictions"])
    except HTTPError as refused:
        with refused:
            reason = json.load(refused)["error"]
            after = int(refused.headers["Retry-After"])
            return 0 if refused.code == 429 and after >= 1 and "too many" in reason else -1


def test_overload_is_refused_none_is_lost_and_a_stop_answers_what_was_accepted(table_file):
    options = ("--max-queue", 8, "--batch", 4, "--threads", 1)
    with service(table_file, *options) as (url, process), ThreadPoolExecutor(24) as pool:
        start, rows = threading.Barrier(24), [[1.0, 2.0, 3.0]] * 8

        def one(_):
            start.wait()
            return [answered_or_refused(url, rows) for _ in range(4)]

        counts = [count for found in pool.map(one, range(24)) for count in found]
        assert len(counts) == 96
        assert set(counts) == {0, 8}
        last = pool.submit(ask, url, [[1.0, 2.0, 3.0]] * 1000)
        wait_for(lambda: not waiting_is_empty(url))
        process.send_signal(signal.SIGTERM)
        assert len(last.result()["predictions"]) == 1000
        assert process.wait(20) == 0


def waiting_is_empty(url):
    with urlopen(f"{url}/metrics", timeout=30) as answer:
        return 'queue_rows{model="flowers"} 0.0' in answer.read().decode()


def test_a_port_that_is_taken_and_a_file_that_is_missing_are_said_in_a_line(tmp_path):
    with bind("127.0.0.1", 0) as taken, pytest.raises(UserError, match="choose another"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="no such file"):
        serve([tmp_path / "no.onnx"])


def test_settings_that_no_service_can_start_with_are_said_in_a_line(table_file, tmp_path):
    with pytest.raises(UserError, match="false_alarms=2"):
        serve([table_file], false_alarms=2)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: no folder"):
        serve([table_file], state=tmp_path / "file")


def test_a_service_whose_worker_cannot_start_ends_with_an_error(monkeypatch):
    class Dead:
        pid, exitcode = 1, 3
        is_alive = terminate = join = lambda *_: False

    def start(self, replica):
        self._workers[replica], self._began[replica] = Dead(), time.monotonic()

    monkeypatch.setattr(Supervisor, "_start", start)
    monkeypatch.setattr("density_softmax.service.process.forget_process", lambda pid: None)
    monkeypatch.setattr("density_softmax.service.process.signal.signal", lambda *_: None)
    Dead.sentinel = bind("127.0.0.1", 0)
    with Dead.sentinel, pytest.raises(UserError, match="cannot start"):
        Supervisor([], Settings(), bind("127.0.0.1", 0), 1).run()


def test_the_client_asks_for_rows_images_and_the_monitor(running, image_file, table_file):
    client = ds.Client(running)
    predictor = Predictor(table_file, threads=1)
    rows = rows_of(samples(predictor, 3)[0])
    found = client.predict(rows)
    decision = predictor.decide(predictor.prepare([list(row.values()) for row in rows]))
    assert [record["label"] for record in found] == decision.names
    assert client.predict([[1.0, 2.0, 3.0]])[0]["confidence"] == pytest.approx(1 / 3)
    assert ds.Client(running, "colours").predict_image(png())["label"] == "red"
    assert client.monitor()["monitor"]["inputs"] >= 4
    assert client.acknowledge()["monitor"]["inputs"] == 0
    assert ds.Client(running, "colours").acknowledge()["model"] == "colours"
    with pytest.raises(UserError, match="422, no input can be read: 0"):
        client.predict([[1.0]])
    with pytest.raises(UserError, match="is it running"):
        ds.Client("http://127.0.0.1:9").predict([[1.0]])


def test_the_client_understands_the_errors_of_a_proxy(monkeypatch):
    def answer(*_, **__):
        raise HTTPError("http://x", 502, "Bad Gateway", None, io.BytesIO(b"<html>"))

    monkeypatch.setattr("density_softmax.service.client.urlopen", answer)
    with pytest.raises(UserError, match="502, Bad Gateway"):
        ds.Client("http://x").monitor()


@NEEDS_CURL
def test_the_curl_commands_of_the_documentation_work(running, tmp_path):
    (tmp_path / "digit.png").write_bytes(png())
    (tmp_path / "rows.csv").write_text("length,width,height size\n1,2,3\n4,5,6\n")
    page = Path(__file__).parents[2] / "docs" / "serving.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("curl")]
    assert len(lines) == 7
    for line in lines:
        words = [word.replace("http://127.0.0.1:8000", running) for word in shlex.split(line)]
        words[-1] = words[-1].replace("/wine", "/flowers")
        if words[-1].endswith("/predict"):  # the image
            words[-1] += "/colours"
        done = subprocess.run([*words, "-sf"], capture_output=True, cwd=tmp_path, check=True)
        assert done.stdout.startswith((b'{"model"', b"input,label", b"# HELP")), line


def test_the_protocols_own_client_works(running, table_file):
    http = pytest.importorskip("tritonclient.http")
    client = http.InferenceServerClient(running.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("flowers")
    predictor = Predictor(table_file, threads=1)
    x = samples(predictor, 5)[0]
    answer = predictor.predict(x)
    for binary in (True, False):
        given = http.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        outputs = [http.InferRequestedOutput(n, binary_data=binary) for n in ("probs", "label")]
        found = client.infer("flowers", [given], outputs=outputs)
        assert (found.as_numpy("probs") == answer.probs).all()
        labels = [n.decode() if isinstance(n, bytes) else n for n in found.as_numpy("label")]
        assert labels == predictor.decide(x).names
