"""The endpoints: answers are those of the Predictor and its policy, bit for bit."""

import asyncio
import csv
import io
import json
import os
import time

import numpy as np
import pytest
from handmade import CLASSES, COLUMNS, png, rows_of, samples, write_model
from jsonschema import Draft202012Validator
from services import client_of

import density_softmax as ds
from density_softmax.cli.service import _allowed
from density_softmax.errors import UserError
from density_softmax.serve.predictor import Predictor
from density_softmax.service.app import create_app
from density_softmax.service.models import Shelf
from density_softmax.service.settings import Settings, read_token

TOKEN = "correct-horse-battery-staple"


def infer(client, name, tensors, outputs=None, binary=False, **more):
    """An inference request with binary tensors, as the protocol's clients make them."""
    inputs, parts = [], []
    for key, (kind, values) in tensors.items():
        data = np.ascontiguousarray(values).tobytes()
        parameters = {"binary_data_size": len(data)}
        entry = {"name": key, "datatype": kind, "shape": list(values.shape)}
        inputs.append({**entry, "parameters": parameters})
        parts.append(data)
    request = {"inputs": inputs, "parameters": {"binary_data_output": binary}, **more}
    if outputs is not None:
        request["outputs"] = outputs
    text = json.dumps(request).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    url = f"/v2/models/{name}/infer"
    return client.post(url, content=text + b"".join(parts), headers=headers)


def tensors_of(answer):
    """The outputs of an answer by name."""
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    head, rest, found = json.loads(answer.content[:length]), answer.content[length:], {}
    types = {"FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = np.array(output["data"], types.get(output["datatype"]))
        else:
            data, rest = rest[:size], rest[size:]
            values = np.frombuffer(data, types[output["datatype"]])
        found[output["name"]] = values.reshape(output["shape"])
    return found


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", ["flowers", "colours"])
def test_inference_gives_the_bits_of_predictor_and_policy(client, exported, name, binary):
    predictor = Predictor(exported / f"{name}.onnx", threads=1)
    x = 3 * samples(predictor, 9, seed=3)[0]
    answer, decision = predictor.predict(x), predictor.decide(x)
    wanted = [{"name": n} for n in ("probs", "aleatoric", "epistemic", "typicality", "sets")]
    response = infer(client, name, {"x": ("FP32", x)}, wanted, binary)
    assert response.status_code == 200, response.text
    found = tensors_of(response)
    for key in ("probs", "aleatoric", "epistemic"):
        np.testing.assert_array_equal(found[key], getattr(answer, key))
    np.testing.assert_array_equal(found["typicality"], decision.typicality)
    np.testing.assert_array_equal(found["sets"], decision.sets)


def test_texts_travel_as_bytes_too(client, exported):
    x = samples(Predictor(exported / "flowers.onnx"), 2)[0]
    response = infer(client, "flowers", {"x": ("FP32", x)}, [{"name": "label"}], True, id="7")
    length = int(response.headers["Inference-Header-Content-Length"])
    data, found = response.content[length:], []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    head = json.loads(response.content[:length])
    assert head["id"] == "7"
    assert head["outputs"][0]["datatype"] == "BYTES"
    assert found == Predictor(exported / "flowers.onnx").decide(x).names


def test_raw_inputs_are_prepared_as_the_predictor_does(client, exported):
    predictor = Predictor(exported / "colours.onnx", threads=1)
    raw = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
    found = tensors_of(infer(client, "colours", {"raw": ("UINT8", raw)}, [{"name": "probs"}], True))
    np.testing.assert_array_equal(found["probs"], predictor.predict(predictor.prepare(raw)).probs)


def test_a_row_that_is_not_finite_is_unknown_and_null(client, exported):
    x = samples(Predictor(exported / "flowers.onnx"), 2)[0]
    x[0] = np.inf
    found = infer(client, "flowers", {"x": ("FP32", x)}).json()["outputs"]
    values = {output["name"]: output["data"] for output in found}
    assert values["epistemic"][0] is None
    assert values["action"] == ["unknown", "answer"]


def test_metadata_and_health_are_those_of_the_protocol(client):
    for path in ("live", "ready"):
        assert client.get(f"/v2/health/{path}").status_code == 200
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    found = client.get("/v2/models/flowers").json()
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    names = {output["name"]: output["shape"] for output in found["outputs"]}
    assert names["probs"] == names["sets"] == names["contributions"] == [-1, 3]
    version = found["versions"][0]
    assert client.get(f"/v2/models/flowers/versions/{version}/ready").status_code == 200
    assert client.get("/v2/models/flowers/versions/7/ready").status_code == 404


def records_of(predictor, x):
    """What a record must say, from the predictor alone."""
    answer, decision = predictor.predict(x), predictor.decide(x)
    return [
        {
            "label": decision.names[row],
            "confidence": float(answer.probs[row].max()),
            "aleatoric": float(answer.aleatoric[row]),
            "epistemic": float(answer.epistemic[row]),
            "typicality": float(decision.typicality[row]),
            "action": str(decision.action[row]),
            "reason": str(decision.reason[row]),
            "set": list(decision.set_names[row]),
            "contributions": dict(
                zip(predictor.card.experts, answer.contributions[row].tolist(), strict=True)
            ),
        }
        for row in range(len(x))
    ]


def matches(found, expected):
    return [{key: record[key] for key in expected[0]} for record in found] == expected


def test_rows_tables_and_images_are_answered_with_the_bits_of_the_predictor(client, exported):
    table = Predictor(exported / "flowers.onnx", threads=1)
    rows = rows_of(2 * samples(table, 6, seed=5)[0])
    prepared = table.prepare([[row[name] for name in COLUMNS] for row in rows])
    expected = records_of(table, prepared)
    as_lists = [[row[name] for name in COLUMNS] for row in rows]
    file = io.StringIO()
    writer = csv.DictWriter(file, [*COLUMNS[::-1], "other"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**row, "other": "x"} for row in rows)
    for body in (
        {"json": {"rows": rows}},
        {"json": rows},
        {"json": {"rows": as_lists}},
        {"content": file.getvalue(), "headers": {"Content-Type": "text/csv"}},
        {"files": {"file": ("rows.csv", file.getvalue())}},
    ):
        response = client.post("/predict/flowers", **body)
        assert matches(response.json()["predictions"], expected), response.text
    images = Predictor(exported / "colours.onnx", threads=1)
    pictures = [png((200, 30, 90)), png((10, 220, 60))]
    raw = np.broadcast_to(np.uint8([[200, 30, 90], [10, 220, 60]])[:, None, None], (2, 4, 4, 3))
    expected = records_of(images, images.prepare(raw))
    files = [("file", (f"{n}.png", p, "image/png")) for n, p in enumerate(pictures)]
    response = client.post("/predict/colours", files=files)
    assert matches(response.json()["predictions"], expected), response.text
    headers = {"Content-Type": "image/png"}
    response = client.post("/predict/colours", content=pictures[0], headers=headers)
    found = records_of(images, images.prepare(raw[:1]))
    assert matches(response.json()["predictions"], found)


def test_csv_comes_back_as_csv_for_those_who_ask(client):
    text = f"{','.join(COLUMNS)}\n1,2,3\n1,x,3\n"
    headers = {"Content-Type": "text/csv", "Accept": "text/csv"}
    lines = list(
        csv.DictReader(io.StringIO(client.post("/predict", content=text, headers=headers).text))
    )
    assert [line["action"] for line in lines] == ["answer", "bad"]
    assert "line 3, column 'width'" in lines[1]["reason"]
    assert float(lines[0]["confidence"]) == pytest.approx(1 / 3)


def test_a_bad_input_does_not_spoil_its_neighbours(client):
    files = [("file", ("a.png", png(), "image/png")), ("file", ("b.png", b"no", "image/png"))]
    found = client.post("/predict/colours", files=files).json()["predictions"]
    alone = client.post("/predict/colours", files=files[:1]).json()["predictions"]
    assert found[0] == alone[0]
    assert found[1]["action"] == "bad"
    assert "none of JPEG, PNG" in found[1]["reason"]


def test_the_openapi_description_has_fields_and_classes_and_fits_the_answers(client):
    found = client.get("/openapi.json").json()
    post = found["paths"]["/predict/flowers"]["post"]
    rows = post["requestBody"]["content"]["application/json"]["schema"]
    row = rows["properties"]["rows"]["items"]["anyOf"][0]
    assert row["required"] == list(COLUMNS)
    body = {"rows": [dict.fromkeys(COLUMNS, 1.5)]}
    Draft202012Validator(rows).validate(body)
    answer = post["responses"]["200"]["content"]["application/json"]["schema"]
    record = answer["properties"]["predictions"]["items"]["properties"]
    assert record["label"]["enum"] == list(CLASSES)
    Draft202012Validator(answer).validate(client.post("/predict/flowers", json=body).json())
    assert (
        "multipart/form-data"
        in found["paths"]["/predict/colours"]["post"]["requestBody"]["content"]
    )


def test_metrics_count_requests_decisions_and_the_monitor(table_file):
    with client_of(table_file) as client:
        client.post("/predict", json=[[1, 2, 3], [99, 99, 99]])
        client.post("/predict", content=b"{")
        text = client.get("/metrics").text
    for line in (
        'density_softmax_requests_total{endpoint="predict",status="200"} 1.0',
        'density_softmax_requests_total{endpoint="predict",status="415"} 1.0',
        'density_softmax_request_seconds_count{endpoint="predict"} 2.0',
        'density_softmax_decisions_total{action="answer",model="flowers"} 1.0',
        'density_softmax_decisions_total{action="unknown",model="flowers"} 1.0',
        'density_softmax_typicality_bucket{le="0.01",model="flowers"} 1.0',
        'density_softmax_monitor_inputs{model="flowers"} 2.0',
        'density_softmax_monitor_alarm{model="flowers"} 0.0',
        'density_softmax_queue_rows{model="flowers"} 0.0',
    ):
        assert line in text


def test_the_monitor_raises_an_alarm_when_the_stream_changes_and_shows_what_was_unknown(table_file):
    with client_of(table_file) as client:
        x = samples(Predictor(table_file), 300, seed=1)[0]
        client.post("/predict", json=rows_of(x))
        before = client.get("/monitor").json()
        client.post("/predict", json=rows_of(x + 4))
        after = client.get("/monitor/flowers").json()
    assert before["monitor"]["alarm"] is False
    assert before["monitor"]["inputs"] == 300
    assert after["monitor"]["alarm"] is True
    assert after["counts"]["unknown"] >= 300
    latest = after["unknown"][0]
    np.testing.assert_allclose(latest["values"], list(rows_of(x + 4)[-1].values()), rtol=1e-5)
    assert latest["columns"] == list(COLUMNS)


def test_a_model_without_a_policy_says_what_it_knows(tmp_path):
    with client_of(write_model(tmp_path / "plain.onnx", policy=False)) as client:
        record = client.post("/predict", json=[[1, 2, 3]]).json()["predictions"][0]
        assert "action" not in record
        assert record["label"] in CLASSES
        assert client.get("/monitor").json()["monitor"] is None
        assert "density_softmax_decisions_total" in client.get("/metrics").text


def test_a_policy_from_a_file_replaces_that_of_the_model(table_file, tmp_path):
    predictor = Predictor(table_file)
    policy = ds.Policy.fit(predictor, samples(predictor, 500), false_alarms=0.5)
    policy.save(tmp_path / "policy.json")
    x = samples(predictor, 50, seed=9)[0]
    with client_of(table_file, policy=str(tmp_path / "policy.json")) as client:
        found = client.post("/predict", json=rows_of(x)).json()["predictions"]
    actions = policy(predictor.predict(predictor.prepare([list(r.values()) for r in rows_of(x)])))
    assert [record["action"] for record in found] == actions.action.tolist()
    assert {record["action"] for record in found} == {"answer", "unknown"}


def changed(file, write):
    """Replace a file by one that has another time."""
    write(file)
    os.utime(file, ns=(time.time_ns(), time.time_ns() + 10**9))


def test_a_changed_file_is_served_and_a_broken_one_is_not(tmp_path):
    file = write_model(tmp_path / "model.onnx")
    ask = {"rows": [[1.5, 2, 3]]}
    with client_of(file, reload=0.02) as client:
        first = client.post("/predict", json=ask).json()
        changed(file, lambda path: path.write_bytes(b"not a model"))
        wait_for(lambda: 'loaded="false"' in client.get("/metrics").text)
        assert client.post("/predict", json=ask).json() == first
        changed(file, lambda path: write_model(path, sharpness=1))
        wait_for(lambda: client.get("/v2/models/model").json()["versions"] != [first["version"]])
        second = client.post("/predict", json=ask).json()
    assert second["predictions"][0]["confidence"] < first["predictions"][0]["confidence"]


def test_a_request_is_answered_by_the_version_that_it_came_for(tmp_path):
    file = write_model(tmp_path / "model.onnx")

    async def reload():
        shelf = Shelf([file], Settings(threads=1, reload=0.01))
        shelf.start()
        tending, x = asyncio.create_task(shelf.tend()), samples(shelf.first.predictor, 3)[0]
        with shelf.first.used() as older:  # a request whose body has not come yet
            changed(file, lambda path: write_model(path, sharpness=1))
            while shelf.first is older:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            found = await asyncio.wait_for(older.answer(x), 5)
        tending.cancel()
        await shelf.close()
        return found.columns["probs"], older.predictor.predict(x).probs

    np.testing.assert_array_equal(*asyncio.run(reload()))


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_token_is_asked_for_everywhere_but_where_nothing_is_told(table_file):
    with client_of(table_file, token=TOKEN) as client:
        for path in ("/", "/page.js", "/page.css", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200
        for path in (
            "/v2",
            "/v2/models",
            "/v2/models/flowers",
            "/monitor",
            "/metrics",
            "/openapi.json",
        ):
            refused = client.get(path)
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            good = {"Authorization": f"Bearer {TOKEN}"}
            assert client.get(path, headers=good).status_code == 200
            for wrong in (
                f"Bearer {TOKEN}x",
                f"Basic {TOKEN}",
                TOKEN,
                "Bearer ",
                f"Bearer {TOKEN[:-1]}",
            ):
                assert client.get(path, headers={"Authorization": wrong}).status_code == 401


def test_tokens_come_from_a_file_or_the_environment_and_are_not_short(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file, {}) == TOKEN
    assert read_token(None, {"DENSITY_SOFTMAX_TOKEN": TOKEN}) == TOKEN
    assert read_token(None, {}) is None
    file.write_text("short\n")
    with pytest.raises(UserError, match="at least 16"):
        read_token(file, {})
    assert TOKEN not in repr(Settings(token=TOKEN))


def test_a_page_of_another_site_cannot_send_requests(client):
    answer = client.post("/predict", json=[[1, 2, 3]], headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    same = {"Origin": "http://testserver"}
    assert client.post("/predict", json=[[1, 2, 3]], headers=same).status_code == 200


def test_a_page_that_rebinds_its_name_to_this_machine_is_refused(table_file):
    allowed = _allowed("127.0.0.1", ["models.example"])
    with client_of(table_file, hosts=allowed) as client:
        for name in (
            "evil.example",
            "evil.example:8000",
            "",
            "[::2]:8000",
            "127.0.0.1.evil.example",
        ):
            refused = client.get("/v2/health/live", headers={"Host": name})
            assert refused.status_code == 403
            assert "--allow-host" in refused.json()["error"]
        for name in ("localhost:8000", "127.0.0.1", "[::1]:8000", "Models.Example:443"):
            assert client.get("/v2/health/live", headers={"Host": name}).status_code == 200
    assert _allowed("0.0.0.0", []) == ()  # a token is to protect it
    assert _allowed("10.1.2.3", ["a.example"]) == ("10.1.2.3", "a.example")


def test_an_alarm_is_acknowledged_by_those_who_have_the_token(table_file):
    good = {"Authorization": f"Bearer {TOKEN}"}
    with client_of(table_file, token=TOKEN) as client:
        x = samples(Predictor(table_file), 200)[0] + 4
        client.post("/predict", json=rows_of(x), headers=good)
        assert client.get("/monitor", headers=good).json()["monitor"]["alarm"] is True
        assert client.post("/monitor/acknowledge").status_code == 401
        for path in ("/monitor/acknowledge", "/monitor/flowers/acknowledge"):
            found = client.post(path, headers=good).json()["monitor"]
            assert found["alarm"] is False
            assert found["inputs"] == 0
        assert "density_softmax_monitor_alarm" in client.get("/metrics", headers=good).text
        assert client.post("/monitor/no/acknowledge", headers=good).status_code == 404


def test_models_that_cannot_be_told_apart_or_opened_are_refused(table_file, tmp_path):
    copy = tmp_path / "flowers.onnx"
    copy.write_bytes(table_file.read_bytes())
    with pytest.raises(UserError, match="a model 'flowers' is there already"):
        create_app([table_file, copy])
    with pytest.raises(UserError, match="no such file"):
        create_app([tmp_path / "nothing.onnx"])
    with pytest.raises(UserError, match="--policy for 2 models"):
        create_app([table_file, tmp_path / "b.onnx"], Settings(policy="p.json"))
    with pytest.raises(UserError, match="part of an address"):
        create_app([tmp_path / "a b.onnx"])
