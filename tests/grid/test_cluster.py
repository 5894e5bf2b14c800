"""Grids and predictions on a Ray cluster, one of whose workers is killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_grid import LONG, cells_of, results
from test_jobs import is_alive, process_of, wait_for

from density_softmax.benchmark import run
from density_softmax.errors import DataError, UserError
from density_softmax.grid.board import entry_of
from density_softmax.grid.jobs import RayEngine
from density_softmax.serve.predictor import Predictor
from density_softmax.serve.stream import predict_stream

# Ray leaves behind what pytest complains about, so the cluster is entered in a process of its own,
# which all tests here share: it runs the code that it is sent, line by line, and prints the result.
DRIVER = """
import json, sys
import ray
ray.init(
    address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
)
for line in sys.stdin:
    names = {"result": "done"}
    try:
        exec(json.loads(line), names)
    except Exception as error:
        names["result"] = repr(error)
    print("result", json.dumps(names["result"]), flush=True)
"""
MODELS = Path(__file__).parents[2] / "docs" / "demo"


class Cluster:
    """Two workers, and a process that uses them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def start(self, code: str) -> None:
        """Run code, which may leave a `result`."""
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """What it left; Ray prints lines of its own."""
        lines = iter(self.process.stdout.readline, "")
        return json.loads(next(line[7:] for line in lines if line.startswith("result ")))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Cluster(process)
        process.stdin.close()


GRID = """
from pathlib import Path
from density_softmax.grid.jobs import Job, RayEngine
engine = RayEngine()
jobs = [Job(name, tuple(words), Path(log), Path.cwd()) for name, words, log in {jobs}]
result = [future.result().error for future in [engine.submit(job) for job in jobs]]
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_cluster_gives_the_local_rows_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    out, local = tmp_path / "ray", tmp_path / "local"
    cells = cells_of(out, ["deterministic"], 2, *LONG)
    jobs = [entry_of(cell, out).job for cell in cells]
    cluster.start(GRID.format(jobs=[(job.name, job.words, str(job.log)) for job in jobs]))
    wait_for((cells[0].run.path / "stages" / "train.partial.safetensors").exists, cluster.process)
    cell = process_of(jobs[0].log)
    os.kill(parent_of(cell), signal.SIGKILL)  # the worker, which waits for the cell
    wait_for(lambda: not is_alive(cell))
    assert cluster.result() == ["", ""]
    assert jobs[0].log.read_text().count(", process ") == 2  # it was started again
    for each in cells_of(local, ["deterministic"], 2, *LONG):
        run(each.run, progress=False)
    assert len(results(out)) == 2
    assert results(out) == results(local)


# Opens the model, but kills the first worker that asks for it.
PREDICT = """
import os, signal
from functools import partial
from pathlib import Path
from density_softmax import Predictor
from density_softmax.serve.stream import predict_stream

def replica(model=Path({model!r}), mark=Path({folder!r}, "killed")):
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Predictor(model, 1)

predict_stream(
    Predictor({model!r}, 1), Path({path!r}), Path({folder!r}, "ray.csv"), batch_size=8,
    replica=replica,
)
"""


def write_table(path: Path) -> Path:
    """Enough rows for several tasks, some of them bad."""
    x = np.random.default_rng(0).normal(size=(3000, 2))
    rows = [f"{a},{b if row % 700 else 'seven'}" for row, (a, b) in enumerate(x)]
    path.write_text("\n".join(["x,y", *rows]) + "\n", encoding="utf-8")
    return path


def write_images(path: Path) -> Path:
    """Some images, one of them broken."""
    path.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(path / f"{number:02}.png")
    (path / "07.png").write_bytes(b"no image")
    return path


@pytest.mark.parametrize(("model", "write"), [("two_moons", write_table), ("digits", write_images)])
def test_predictions_on_a_cluster_are_the_local_bytes_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path, model: str, write: Callable[[Path], Path]
) -> None:
    file, path = MODELS / f"{model}.onnx", write(tmp_path / "inputs.csv")
    cluster.start(PREDICT.format(model=str(file), path=str(path), folder=str(tmp_path)))
    assert cluster.result() == "done"
    assert (tmp_path / "killed").exists()
    predict_stream(Predictor(file, 1), path, tmp_path / "local.csv", batch_size=8)
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()


def test_what_cannot_be_read_is_the_same_error_on_a_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("a,b\n1,2\n", encoding="utf-8")
    cluster.start(
        PREDICT.format(model=str(MODELS / "two_moons.onnx"), path=str(table), folder=str(tmp_path))
    )
    with pytest.raises(DataError) as local:
        predict_stream(Predictor(MODELS / "two_moons.onnx", 1), table, tmp_path / "out.csv")
    assert cluster.result() == repr(local.value)


SERVE = """
from pathlib import Path
from ray import serve
from density_softmax.service.cluster import APPLICATION, application
from density_softmax.service.settings import Settings
serve.start(http_options={{"host": "127.0.0.1", "port": {port}}})
serve.run(application([Path({model!r})], Settings(state={state!r}), 2), name=APPLICATION)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def replica() -> int:
    """The process of a replica."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::ServeReplica:density-softmax"):
                return int(folder.name)
    raise AssertionError("there is no replica")


def test_ray_serve_answers_as_the_model_does_though_a_replica_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    file, port = MODELS / "two_moons.onnx", free_port()
    cluster.start(SERVE.format(model=str(file), port=port, state=str(tmp_path)))
    assert cluster.result() == "done"
    address = f"http://127.0.0.1:{port}"
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    tensor = {"name": "x", "shape": [5, 2], "datatype": "FP32", "data": x.flatten().tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    wanted = Predictor(file, 1).predict(x).probs.flatten().tolist()
    for _ in range(2):
        with urllib.request.urlopen(f"{address}/v2/models/two_moons/infer", body, 60) as found:
            outputs = {each["name"]: each["data"] for each in json.load(found)["outputs"]}
        assert outputs["probs"] == wanted
        os.kill(replica(), signal.SIGKILL)
    for path in ("v2/health/ready", "metrics", "openapi.json", ""):
        with urllib.request.urlopen(f"{address}/{path}", timeout=60) as found:
            assert found.status == 200
    with urllib.request.urlopen(f"{address}/monitor", timeout=60) as found:
        assert json.load(found)["monitor"]["inputs"] == 10  # as those before it counted
    cluster.start("from ray import serve; serve.shutdown()")
    assert cluster.result() == "done"


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"density-softmax\[cluster\]"):
        RayEngine()
