"""A headless Chromium that shows a file, driven over a pipe with the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
PATIENCE = 120.0


class Chromium:
    """One page. Commands: https://chromedevtools.github.io/devtools-protocol."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        assert PROGRAM
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def place() -> None:  # the browser reads from 3 and writes to 4
            first, second = os.dup(to_read), os.dup(to_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += [
            "--remote-debugging-pipe",
            f"--window-size={width},{height}",
            f"--user-data-dir={profile}",
        ]
        self._process = subprocess.Popen(
            [PROGRAM, *options, *(["--force-dark-mode"] if dark else []), "about:blank"],
            preexec_fn=place,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self.errors: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = [target["targetId"] for target in targets if target["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.requests: list[str] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._read, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        what, about = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"]["exception"]["description"])
        elif what == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        return message

    def open(self, url: str) -> None:
        """Returns when the page has set `data-ready`."""
        self.call("Page.navigate", url=url)
        end = time.monotonic() + PATIENCE
        while self.value("document.documentElement?.dataset.ready") in (None, ""):
            assert time.monotonic() < end, ("the page is not ready", self.errors)
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        text = self.value(f"document.querySelector({json.dumps(selector)}).innerText")
        assert isinstance(text, str)
        return text

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def place(self, expression: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element in the window, after it has been scrolled there."""
        box = self.value(
            f"(() => {{ const e = {expression}; e.scrollIntoView({{block: 'center'}}); "
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        left, top, width, height = box
        return left, top, width, height

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
