"""A headless Chromium that does what a person does, by its debugging protocol over a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
NEEDS_CHROMIUM = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
OPTIONS += ("--no-first-run", "--remote-debugging-pipe", "--disable-dev-shm-usage", "--mute-audio")
KEYS = {" ": 32, "Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
KEYS |= {"ArrowDown": 40}


class Chromium:
    """A browser with one page.

    Args:
        width: of the window, in CSS pixels; 390 is a phone's.
        height: likewise.
    """

    def __init__(self, width: int = 1000, height: int = 800) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        self._process = subprocess.Popen(
            [str(BROWSER), *OPTIONS, f"--user-data-dir={self._folder.name}", "about:blank"],
            # Chromium reads descriptor 3 and writes descriptor 4.
            preexec_fn=lambda: (os.dup2(ends[0], 3), os.dup2(ends[1], 4)),
            pass_fds=(3, 4),
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._stream = os.fdopen(self._read, "rb")
        self._session: dict[str, str] = {}
        self._count = 0
        self.errors: list[str] = []  # that scripts of the page did not catch
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime"):
            self._call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._stream.close()
        os.close(self._write)
        self._folder.cleanup()

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def dark(self, is_dark: bool = True) -> None:
        """Prefer dark pages, or light ones."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self._call("Page.navigate", url=url)
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def run(self, code: str) -> Any:
        """The value of an expression, which may await."""
        found = self._call(
            "Runtime.evaluate",
            **{"expression": f"(async () => ({code}))()", "awaitPromise": True},
            returnByValue=True,
        )
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """What an element shows."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def place(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """Where an element is in the window, after it was scrolled into sight."""
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] })()"
        )
        return found[0] + across * found[2], found[1] + down * found[3]

    def drag(self, points: Sequence[tuple[float, float]]) -> None:
        """Press the mouse, move it along some points and release it."""
        for kind, (x, y) in [
            ("mousePressed", points[0]),
            *(("mouseMoved", point) for point in points[1:]),
            ("mouseReleased", points[-1]),
        ]:
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        self.drag([self.place(selector)])

    def key(self, key: str, times: int = 1) -> None:
        """Press a key and release it."""
        named: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": KEYS[key]}
        for _ in range(times):
            text = {"text": " "} if key == " " else {}
            self._call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **named)

    def screenshot(self, path: Path) -> None:
        """Write a picture of what is to be seen."""
        found = self._call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (found := self._message()).get("id") != self._count:
            pass
        if "error" in found:
            raise AssertionError(f"{method}: {found['error']}")
        return found["result"]

    def _message(self) -> Any:
        content = bytearray()
        while (byte := self._stream.read(1)) != b"\0":
            if not byte:
                raise AssertionError("the browser has ended")
            content += byte
        message = json.loads(content)
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(str(details.get("exception", details).get("description", details)))
        return message
