"""A headless Chromium, driven through chromedriver by the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
DRIVER = shutil.which("chromedriver")
OPTIONS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
OPTIONS += " --disable-background-networking --disable-component-update"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """A window. Elements are named by CSS selectors."""

    def __init__(self, session: str) -> None:
        self._session = session

    def ask(self, path: str, values: dict[str, Any] | None = None) -> Any:
        body = None if values is None else json.dumps(values).encode()
        request = Request(f"{self._session}{path}", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        self.ask("/url", {"url": url})

    def run(self, script: str) -> Any:
        return self.ask("/execute/sync", {"script": script, "args": []})

    def text(self, selector: str) -> str:
        return self.run(f"return document.querySelector({selector!r})?.textContent ?? ''")

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Until a condition in JavaScript holds."""
        end = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"never: {condition}\n{self.text('body')}"
            time.sleep(0.05)

    def type(self, selector: str, text: str) -> None:
        """Into an element: text, or the paths of files."""
        found = self.ask("/element", {"using": "css selector", "value": selector})[ELEMENT]
        self.ask(f"/element/{found}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Keys, one after another, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def look(self, width: int, dark: bool) -> None:
        """As a window of this width, with a light or dark scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", {"features": [scheme]})

    def cdp(self, command: str, parameters: dict[str, Any]) -> Any:
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, file: Path) -> None:
        found = self.cdp("Page.captureScreenshot", {"captureBeyondViewport": True})
        file.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def opened(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in a folder, with a log of its errors and requests."""
    driver = subprocess.Popen(
        [str(DRIVER), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        line = next(line for line in driver.stdout if "successfully on port" in line)
        root = f"http://127.0.0.1:{line.split('on port ')[1].strip(' .' + chr(10))}"
        options = {
            "binary": CHROMIUM,
            "args": [*OPTIONS.split(), f"--user-data-dir={folder / 'profile'}"],
        }
        always = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        asked = {"capabilities": {"alwaysMatch": always}}
        session = Browser(root).ask("/session", asked)["sessionId"]
        browser = Browser(f"{root}/session/{session}")
        try:
            yield browser
        finally:
            request = Request(f"{root}/session/{session}", method="DELETE")
            urlopen(request, timeout=60).close()
    finally:
        driver.terminate()
        driver.wait()
        if driver.stdout is not None:
            driver.stdout.close()
