"""A headless Chromium that shows a page, driven by the DevTools protocol over a pipe."""

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """A window that shows a page after the script ``before``; ``profile`` gets saved files."""

    def __init__(self, page: Path, profile: Path, before: str = ""):
        # Chromium reads from file 3 and writes to file 4.
        as_3_and_4 = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        self._process = subprocess.Popen(
            ["sh", "-c", as_3_and_4, "sh", find_chromium(), *FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self._call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(profile))
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        self._call("Page.enable")
        self._call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self._call("Page.navigate", url=page.as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.communicate()

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Wait until the value of a JavaScript expression is truthy, and return the value."""
        return _once_true(lambda: self.evaluate(expression), expression)

    def wait_for_file(self, file: Path) -> Path:
        """Wait until a saved file is not empty (Chromium creates it empty); return the file."""
        _once_true(lambda: file.exists() and file.stat().st_size, str(file))
        return file

    def choose(self, element: str, *files: Path) -> None:
        """Choose files in the file input that a JavaScript expression selects."""
        found = self._call("Runtime.evaluate", expression=element)["result"]["objectId"]
        self._call("DOM.setFileInputFiles", objectId=found, files=[*map(str, files)])

    def set_width(self, width: int) -> None:
        """Set the width of the window in pixels."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def click(self, element: str) -> None:
        self.evaluate(f"{element}.click()")

    def _call(self, method: str, **params: Any) -> dict:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while (answer := self._read()).get("id") != number:
            pass
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _read(self) -> dict:
        message = bytearray()
        while (byte := self._process.stdout.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            message += byte
        return json.loads(message)


def _once_true(value_of: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 120
    while not (value := value_of()):
        assert time.monotonic() < end, f"{what}: nothing has come"
        time.sleep(0.05)
    return value
