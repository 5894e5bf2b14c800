"""The demo page in a real browser: its answers, and what a person can do with it."""

import importlib.util
import json
import math
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import markdown
import numpy as np
import pytest
from fenced_blocks import ROOT

import density_softmax as ds
from chromium import NEEDS_CHROMIUM, Chromium

DOCS = ROOT / "docs"
ANSWERED = "new Promise((done) => setTimeout(done, 100))"


def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_hook", DOCS / "hooks" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = hook()


def build(folder: Path, scripts: dict[str, str]) -> Path:
    """The page as the site has it, without the theme around it."""
    body = markdown.markdown(
        (DOCS / "demo.md").read_text(encoding="utf-8"), extensions=["md_in_html", "attr_list"]
    )
    head = "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    page = folder / "demo.html"
    page.write_text(f"{head}<body>{body}</body>", encoding="utf-8")
    (folder / "assets" / "onnxruntime-web").mkdir(parents=True)
    for name in ("demo.js", "demo.css"):
        shutil.copy(DOCS / "assets" / name, folder / "assets")
    for name, content in scripts.items():
        (folder / "assets" / "onnxruntime-web" / name).write_text(content, encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        runtime = HOOK.runtime_scripts(HOOK.package())
    except OSError as error:
        pytest.skip(f"without onnxruntime-web: {error}")
    return build(
        tmp_path_factory.mktemp("site"), {**runtime, "models.js": HOOK.models_script()}
    ).parent


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as found:
        yield found
        assert found.errors == []


@pytest.fixture
def page(site: Path, browser: Chromium) -> Chromium:
    url = (site / "demo.html").as_uri()
    if browser.run("location.href") != url:
        browser.open(url)
        assert browser.run("Object.keys(await window.demo)") == ["digits", "two_moons"]
    return browser


def numbers(name: str) -> np.ndarray:
    """Inputs near the data, far from them, and what is no number."""
    rng = np.random.default_rng(0)
    shape = ds.Predictor(DOCS / "demo" / f"{name}.onnx").card.input_shape
    x = rng.normal(0.5, 1.0, (12, *shape)).astype(np.float32)
    x[8:10] *= 100
    x[10], x[11] = 1e30, np.nan
    return x


def percentage(page: Chromium, demo: str, name: str) -> float:
    lines = page.text(f"#demo-{demo} .demo-answer").splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return float(line.removeprefix(f"{name}: ").removesuffix(" %")) / 100


@NEEDS_CHROMIUM
@pytest.mark.parametrize("name", ["two_moons", "digits"])
def test_the_browser_answers_as_onnxruntime_does(page: Chromium, name: str) -> None:
    x = numbers(name)
    values = json.dumps(x.flatten().tolist())
    found = page.run(f"(await window.demo)[{name!r}].ask({values})")
    for field, file in (("probs", name), ("plain", f"{name}_plain")):
        wanted = ds.Predictor(DOCS / "demo" / f"{file}.onnx", threads=1).predict(x)
        shown = np.array([answer[field] for answer in found])
        np.testing.assert_allclose(shown, wanted.probs, atol=1e-4)
    wanted = ds.Predictor(DOCS / "demo" / f"{name}.onnx", threads=1).predict(x)
    columns = (wanted.epistemic.astype(float), wanted.typicality)
    for answer, epistemic, typicality in zip(found, *columns, strict=True):
        shown = math.inf if answer["epistemic"] is None else answer["epistemic"]
        assert shown == pytest.approx(epistemic, rel=1e-4, abs=1e-4)
        assert answer["typicality"] == pytest.approx(typicality, abs=1e-4)


@NEEDS_CHROMIUM
def test_a_point_that_leaves_the_data_becomes_unknown(page: Chromium) -> None:
    canvas = "#demo-two_moons canvas"
    page.drag([page.place(canvas, 0.45, 0.3), page.place(canvas, 0.4, 0.34)])  # in the upper moon
    page.run(ANSWERED)
    assert percentage(page, "two_moons", "Typicality") > 0.05
    assert "a known input" in page.text("#demo-two_moons .demo-answer")
    page.run(f"document.querySelector({canvas!r}).focus()")
    page.key("ArrowDown", 30)
    page.key("ArrowLeft", 30)
    page.run(ANSWERED)
    assert percentage(page, "two_moons", "Typicality") < 0.01
    assert percentage(page, "two_moons", "Confidence") < percentage(
        page, "two_moons", "Plain softmax"
    )
    assert "unknown" in page.text("#demo-two_moons .demo-answer")


def circle(page: Chromium) -> None:
    turns = np.linspace(0, 2 * math.pi, 24)
    places = [(0.5 + 0.2 * math.sin(t), 0.5 - 0.35 * math.cos(t)) for t in turns]
    page.drag([page.place("#demo-digits canvas", *place) for place in places])


@NEEDS_CHROMIUM
def test_a_drawn_digit_is_read_and_noise_is_unknown(page: Chromium) -> None:
    page.click("#demo-digits [data-do=clear]")
    circle(page)
    page.run(ANSWERED)
    assert "Label 0" in page.text("#demo-digits .demo-answer")
    page.click("#demo-digits [data-do=noise]")
    page.run(ANSWERED)
    assert "unknown" in page.text("#demo-digits .demo-answer")


@NEEDS_CHROMIUM
def test_a_digit_can_be_drawn_by_keys(page: Chromium) -> None:
    page.click("#demo-digits [data-do=clear]")
    page.run("document.querySelector('#demo-digits canvas').focus()")
    page.key(" ")
    page.key("ArrowDown", 12)
    page.key(" ")
    page.run(ANSWERED)
    assert "Label 1" in page.text("#demo-digits .demo-answer")


@NEEDS_CHROMIUM
def test_a_server_of_plain_files_is_enough(site: Path, browser: Chromium) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.resize(390, 800)
        browser.open(f"http://127.0.0.1:{server.server_port}/demo.html")
        assert browser.run("Object.keys(await window.demo)") == ["digits", "two_moons"]
        # Nothing is wider than a phone.
        assert browser.run("document.documentElement.scrollWidth") <= 390
        browser.resize(1000, 800)
        server.shutdown()


@NEEDS_CHROMIUM
def test_without_the_runtime_the_page_says_so(tmp_path: Path, browser: Chromium) -> None:
    browser.open(build(tmp_path, {"models.js": HOOK.models_script()}).as_uri())
    browser.run("await window.demo")
    assert "built without it" in browser.text("#demo-status")


def test_another_archive_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{HOOK.PACKAGE.replace('@', '-')}.tgz").write_bytes(b"something else")
    with pytest.raises(OSError, match="SHA-512"):
        HOOK.package(tmp_path)


def test_without_npm_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(OSError, match="npm is not installed"):
        HOOK.package(tmp_path)
