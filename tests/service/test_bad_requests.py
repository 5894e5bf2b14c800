"""Bad requests: each is refused with a reason, none crashes, hangs or changes another's answer."""

import asyncio
import io
import json
import socket
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from handmade import COLUMNS, png
from PIL import Image
from services import client_of

from density_softmax.service.requests import RequestError, Upload, read_inputs
from density_softmax.service.settings import Settings

GOOD = {"rows": [[1.5, 2.0, 3.0]]}
LEAKS = ("Traceback", 'File "', "/tmp", "site-packages", ".onnx", "object at 0x")
JSON, CSV = {"Content-Type": "application/json"}, {"Content-Type": "text/csv"}
IMAGE = {"Content-Type": "image/png"}
FLOWERS, COLOURS = "/predict/flowers", "/predict/colours"
INFER = "/v2/models/flowers/infer"
LIMITS = {"rows": 50, "body": 20_000, "pixels": 10_000, "reload": 0}


def tensor(**changes):
    given = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3], **changes}
    return {"inputs": [{k: v for k, v in given.items() if v is not None}]}


def image(kind, mode="RGB", size=(4, 4)):
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind)
    return file.getvalue()


def multipart(body, boundary="B"):
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    return {"content": body, "headers": headers}


def binary(text, data, length=None):
    text = json.dumps(text).encode()
    headers = {"Inference-Header-Content-Length": str(len(text) if length is None else length)}
    return {"content": text + data, "headers": headers}


# What is sent where, and the status and a word of the answer.
KINDS = {
    "no body": (FLOWERS, {}, 422, "no file"),
    "not JSON": (FLOWERS, {"content": b"{rows", "headers": JSON}, 400, "not JSON"),
    "empty JSON": (FLOWERS, {"content": b" ", "headers": JSON}, 400, "not JSON"),
    "JSON in UTF-16": (FLOWERS, {"content": "[".encode("utf-16"), "headers": JSON}, 400, "JSON"),
    "bytes as JSON": (FLOWERS, {"content": b"\xff\xfe\x00", "headers": JSON}, 400, "not JSON"),
    "nested JSON": (FLOWERS, {"content": b"[" * 9000, "headers": JSON}, 400, "JSON"),
    "many digits": (
        FLOWERS,
        {"content": b"[[1,2," + b"9" * 5000 + b"]]", "headers": JSON},
        400,
        "JSON",
    ),
    "a number": (FLOWERS, {"json": 3}, 422, "rows"),
    "a text": (FLOWERS, {"json": "rows"}, 422, "rows"),
    "null": (FLOWERS, {"json": None}, 422, "rows"),
    "no rows": (FLOWERS, {"json": {"rows": []}}, 422, "no rows"),
    "rows are a number": (FLOWERS, {"json": {"rows": 1}}, 422, "rows"),
    "too many rows": (FLOWERS, {"json": [[1, 2, 3]] * 51}, 413, "50 rows"),
    "too few numbers": (FLOWERS, {"json": [[1, 2]]}, 422, "[3]"),
    "too many numbers": (FLOWERS, {"json": [[1, 2, 3, 4]]}, 422, "[3]"),
    "ragged lists": (FLOWERS, {"json": [[1, [2], 3]]}, 422, "equally long"),
    "texts for numbers": (FLOWERS, {"json": [["1", "2", "3"]]}, 422, "numbers"),
    "null for a number": (FLOWERS, {"json": [[1, None, 3]]}, 422, "numbers"),
    "true for a number": (FLOWERS, {"json": [dict.fromkeys(COLUMNS, True)]}, 422, "finite"),
    "infinite": (FLOWERS, {"content": b"[[1, Infinity, 3]]", "headers": JSON}, 422, "finite"),
    "NaN": (FLOWERS, {"content": b"[[1, NaN, 3]]", "headers": JSON}, 422, "finite"),
    "overflowing": (FLOWERS, {"content": b"[[1, 1e999, 3]]", "headers": JSON}, 422, "finite"),
    "a number beyond float32": (FLOWERS, {"json": [[1, 1e300, 3]]}, 422, "finite"),
    "a huge integer": (FLOWERS, {"json": [[1, 10**400, 3]]}, 422, "input"),
    "a missing field": (FLOWERS, {"json": [{"length": 1, "width": 2}]}, 422, "height size"),
    "a text in a field": (FLOWERS, {"json": [dict.fromkeys(COLUMNS, "x")]}, 422, "finite"),
    "markup in a field": (FLOWERS, {"json": [{"<script>": 1}]}, 422, "no field"),
    "rows for images": (COLOURS, {"json": [[1, 2, 3]]}, 422, "[3, 4, 4]"),
    "too large": (FLOWERS, {"content": b"[" + b" " * 30_000 + b"]", "headers": JSON}, 413, "bytes"),
    "too large in chunks": (
        FLOWERS,
        {"content": iter([b"[", b" " * 30_000]), "headers": JSON},
        413,
        "bytes",
    ),
    "no type": (FLOWERS, {"content": b"1,2,3"}, 415, "type"),
    "another type": (
        FLOWERS,
        {"content": b"<a/>", "headers": {"Content-Type": "text/xml"}},
        415,
        "xml",
    ),
    "compressed": (
        FLOWERS,
        {"content": b"\x1f\x8b", "headers": {**JSON, "Content-Encoding": "gzip"}},
        415,
        "compressed",
    ),
    "CSV without the columns": (
        FLOWERS,
        {"content": b"a,b\n1,2\n", "headers": CSV},
        422,
        "'length'",
    ),
    "CSV with a header only": (
        FLOWERS,
        {"content": b"length,width,height size\n", "headers": CSV},
        422,
        "no rows",
    ),
    "CSV of zeros": (FLOWERS, {"content": b"\x00" * 99, "headers": CSV}, 422, "'length'"),
    "CSV with an open quote": (
        FLOWERS,
        {"content": b'length,"width\n1,2,3', "headers": CSV},
        422,
        "quote",
    ),
    "CSV that is a spreadsheet": (
        FLOWERS,
        {"content": b"PK\x03\x04rest", "headers": CSV},
        415,
        "save it as CSV",
    ),
    "CSV with semicolons": (
        FLOWERS,
        {"content": b"length;width\n1;2", "headers": CSV},
        422,
        "commas",
    ),
    "CSV of words": (
        FLOWERS,
        {"content": b"length,width,height size\na,b,c\n", "headers": CSV},
        422,
        "line 2",
    ),
    "CSV of too many rows": (
        FLOWERS,
        {"content": b"length,width,height size\n" + b"1,2,3\n" * 60, "headers": CSV},
        413,
        "50 rows",
    ),
    "CSV for images": (COLOURS, {"content": b"a\n1", "headers": CSV}, 422, "a table"),
    "an image for a table": (FLOWERS, {"content": png(), "headers": IMAGE}, 422, "shape (3,)"),
    "no image": (COLOURS, {"content": b"not an image", "headers": IMAGE}, 422, "none of JPEG"),
    "half an image": (COLOURS, {"content": png(size=64)[:-40], "headers": IMAGE}, 422, "decoded"),
    "too many pixels": (COLOURS, {"content": png(size=200), "headers": IMAGE}, 422, "pixels"),
    "a GIF": (COLOURS, {"content": image("GIF"), "headers": IMAGE}, 422, "none of JPEG"),
    "an EPS": (
        COLOURS,
        {"content": b"%!PS-Adobe-3.0 EPSF-3.0\n(x) run", "headers": IMAGE},
        422,
        "none of JPEG",
    ),
    "an SVG": (
        COLOURS,
        {"content": b'<svg xmlns="http://www.w3.org/2000/svg"/>', "headers": IMAGE},
        422,
        "none of JPEG",
    ),
    "pixels of 32 bits": (
        COLOURS,
        {"content": image("TIFF", "F"), "headers": IMAGE},
        422,
        "32 bits",
    ),
    "a form without a file": (FLOWERS, {"data": {"rows": "1"}, "files": {}}, 415, "type"),
    "a form without a boundary": (
        FLOWERS,
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        400,
        "boundary",
    ),
    "a form that ends early": (
        FLOWERS,
        multipart(b"--B\r\nContent-Disposition: form-data"),
        422,
        "no file",
    ),
    "a form of rubbish": (FLOWERS, multipart(b"rubbish"), 400, "multipart"),
    "too many files": (
        COLOURS,
        {"files": [("file", (f"{n}.png", png(), "image/png")) for n in range(51)]},
        400,
        "files",
    ),
    "image and table": (
        FLOWERS,
        {"files": [("a", ("a.png", png(), "image/png")), ("b", ("b.csv", b"a", "text/csv"))]},
        422,
        "several files",
    ),
    "a path as a name": (
        COLOURS,
        {"files": {"file": ("../../etc/passwd", b"x", "image/png")}},
        422,
        "passwd",
    ),
    "an unknown model": ("/predict/nobody", {"json": GOOD}, 404, "no model"),
    "a path as a model": ("/predict/..%2f..%2fetc%2fpasswd", {"json": GOOD}, 404, ""),
    "an unknown path": ("/nowhere", {"json": GOOD}, 404, "Not Found"),
    "an unknown model to infer": ("/v2/models/no/infer", {"json": tensor()}, 404, "no model"),
    "infer a list": (INFER, {"json": [1]}, 400, "inference request"),
    "infer nothing": (INFER, {"json": {}}, 400, "inference request"),
    "infer without inputs": (INFER, {"json": {"inputs": []}}, 400, "nothing"),
    "infer inputs that are a text": (INFER, {"json": {"inputs": "x"}}, 400, "inference request"),
    "infer another name": (INFER, {"json": tensor(name="y")}, 400, "send x"),
    "infer a name twice": (INFER, {"json": {"inputs": tensor()["inputs"] * 2}}, 400, "own"),
    "infer an unknown datatype": (INFER, {"json": tensor(datatype="FP8")}, 400, "FP8"),
    "infer texts": (INFER, {"json": tensor(datatype="BYTES")}, 400, "BYTES"),
    "infer without a shape": (INFER, {"json": tensor(shape=None)}, 400, "shape"),
    "infer a negative shape": (INFER, {"json": tensor(shape=[-1, 3])}, 400, "sizes"),
    "infer a shape of texts": (INFER, {"json": tensor(shape=["1", 3])}, 400, "sizes"),
    "infer a huge shape": (INFER, {"json": tensor(shape=[10**9, 10**9])}, 400, "values"),
    "infer a shape beyond memory": (
        INFER,
        {"json": tensor(shape=[0, 10**30], data=[])},
        400,
        "sizes",
    ),
    "infer too many dimensions": (INFER, {"json": tensor(shape=[1] * 99, data=[1])}, 400, "sizes"),
    "infer too few values": (INFER, {"json": tensor(data=[1, 2])}, 400, "2 values"),
    "infer no values": (INFER, {"json": tensor(shape=[0, 3], data=[])}, 400, "1 to 50 rows"),
    "infer a single number": (INFER, {"json": tensor(shape=[], data=[1])}, 400, "1 to 50 rows"),
    "infer too many rows": (INFER, {"json": tensor(shape=[60, 3], data=[0] * 180)}, 413, "1 to 50"),
    "infer another shape": (INFER, {"json": tensor(shape=[3, 1])}, 422, "flowers reads (batch, 3)"),
    "infer bytes unprepared": (INFER, {"json": tensor(datatype="UINT8")}, 422, "prepare"),
    "infer out of range": (
        INFER,
        {"json": tensor(datatype="UINT8", data=[1, 2, 300])},
        400,
        "range",
    ),
    "infer words as data": (INFER, {"json": tensor(data=["a", "b", "c"])}, 400, "no float32"),
    "infer an unknown output": (
        INFER,
        {"json": {**tensor(), "outputs": [{"name": "z"}]}},
        400,
        "no output 'z'",
    ),
    "infer outputs without names": (INFER, {"json": {**tensor(), "outputs": [{}]}}, 400, "request"),
    "infer a header beyond the body": (INFER, binary(tensor(), b"", 10**6), 400, "bytes"),
    "infer a header of many digits": (INFER, binary(tensor(), b"", "9" * 5000), 400, "bytes"),
    "infer a negative header": (INFER, binary(tensor(), b"", -1), 400, "bytes"),
    "infer more bytes than there are": (
        INFER,
        binary(tensor(parameters={"binary_data_size": 99}), b"x"),
        400,
        "bytes are left",
    ),
    "infer half a number": (
        INFER,
        binary(tensor(parameters={"binary_data_size": 11}), b"x" * 11),
        400,
        "multiple of 4",
    ),
    "infer bytes too many": (INFER, binary(tensor(), b"more"), 400, "too many"),
}


@pytest.fixture(scope="module")
def strict(table_file, image_file):
    with client_of(table_file, image_file, **LIMITS) as found:
        yield found, found.post(FLOWERS, json=GOOD).content


def test_there_are_sixty_kinds():
    assert len(KINDS) + len(RAW) >= 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_request_is_refused_with_its_reason_and_harms_nobody(strict, kind):
    client, before = strict
    path, request, status, word = KINDS[kind]
    answer = client.post(path, **request)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]
    assert not any(leak in answer.text for leak in LEAKS), answer.text
    assert client.post(FLOWERS, json=GOOD).content == before


def test_images_that_nobody_waits_for_are_not_decoded(strict):
    client, _ = strict
    uploads = [Upload(f"{n}.png", "image/png", png()) for n in range(9)]
    card, settings = client.app.state.service.shelf["colours"].card, Settings()
    with pytest.raises(RequestError, match="only 0 of 9 inputs"):
        read_inputs(uploads, card, settings, until=0.0)
    assert len(read_inputs(uploads, card, settings).names) == 9


def test_what_takes_too_long_is_given_up(table_file, monkeypatch):
    with client_of(table_file, seconds=0.05) as client:
        model = client.app.state.service.shelf["flowers"]
        with monkeypatch.context() as patched:
            patched.setattr(type(model), "answer", lambda self, x: asyncio.sleep(20))
            answer = client.post(FLOWERS, json=GOOD)
        assert answer.status_code == 503
        assert "not done within 0.05 s" in answer.json()["error"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused(strict, method):
    assert strict[0].request(method, FLOWERS).status_code == 405


def test_an_error_of_our_own_is_500_without_details(strict, monkeypatch, capsys):
    client, before = strict
    model = client.app.state.service.shelf["flowers"]
    with monkeypatch.context() as patched:
        patched.setattr(type(model), "answer", lambda self, x: 1 / 0)
        answer = client.post(FLOWERS, json=GOOD)
    assert (answer.status_code, answer.json()) == (500, {"error": "internal error"})
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert client.post(FLOWERS, json=GOOD).content == before


# Bytes that are sent to a real server, and whether it may leave them without an answer.
LINE = b"POST /predict/flowers HTTP/1.1\r\nHost: localhost\r\n"
RAW = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an unknown version": b"GET / HTTP/9.9\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "a negative length": LINE + b"Content-Length: -5\r\n\r\n",
    "a length that is no number": LINE + b"Content-Length: many\r\n\r\n",
    "a length beyond the limit": LINE + b"Content-Length: 99999999999\r\n\r\n",
    "a bad chunk": LINE + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "headers without end": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 30_000,
    "a body that does not come": LINE + b"Content-Type: text/csv\r\nContent-Length: 50\r\n\r\nlen",
    "a path with a zero": b"GET /predict/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path upwards": b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a websocket": b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
}


@pytest.fixture(scope="module")
def asked(running):
    def ask():
        request = Request(f"{running}{FLOWERS}", json.dumps(GOOD).encode(), JSON)
        with urlopen(request, timeout=30) as answer:
            return answer.read()

    return running, ask, ask()


@pytest.mark.parametrize("kind", RAW)
def test_what_is_hardly_http_is_refused_and_harms_nobody(asked, kind):
    url, ask, before = asked
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection((host, port), timeout=30) as connection:
        try:
            connection.sendall(RAW[kind])
            connection.settimeout(10)
            answer = connection.recv(4096)
        except ConnectionError:
            answer = b""  # refused before all was sent
        assert ask() == before
    if answer and kind not in ("a websocket", "an unknown version"):  # which are ignored
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert not any(leak.encode() in answer for leak in LEAKS)


def test_an_upload_that_is_broken_off_is_no_error_of_our_own(asked):
    url, _, _ = asked
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as connection:
        connection.sendall(LINE + b"Content-Type: text/csv\r\nContent-Length: 50\r\n\r\nlen")
    for _ in range(100):
        with urlopen(f"{url}/metrics", timeout=30) as answer:
            numbers = answer.read().decode()
        if 'endpoint="predict",status="400"' in numbers:
            break
    assert 'endpoint="predict",status="400"' in numbers
    assert 'status="500"' not in numbers


def test_a_second_request_that_never_ends_does_not_keep_its_connection(asked):
    url, _, _ = asked
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"
    address = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(head + b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(head)
        while connection.recv(4096):
            pass
