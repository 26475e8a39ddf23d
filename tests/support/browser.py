"""A real headless Chromium, told what to do over the DevTools protocol through a pipe: it opens no port.

Each browser has a profile of its own and reaches no network: its only proxy is a closed loopback port, and tests look
at what it asked for. Protocol: https://chromedevtools.github.io/devtools-protocol, JSON messages that end with a zero
byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-dev-shm-usage", "--proxy-server=http://127.0.0.1:9", "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT_S = 60.0


def chromium() -> str:
    """Return the path of Chromium; without it skip, but fail where everything must run."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = "Chromium is not installed (Debian, Ubuntu: package chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Browser:
    """One Chromium with one page; what the page asked for and complained about is collected."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [chromium(), *FLAGS, f"--user-data-dir={self._folder / 'profile'}", "about:blank"]

        def connect() -> None:
            # The browser reads commands from 3 and writes answers to 4; a number that is taken is moved out of the way.
            commands, answers = os.dup(to_browser), os.dup(from_browser)
            high = (os.dup2(commands, 103), os.dup2(answers, 104))
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        with (self._folder / "browser.log").open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=connect, close_fds=False, start_new_session=True
            )
        os.close(to_browser)
        os.close(from_browser)
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result; an error fails the test."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Load a page to its end."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + TIMEOUT_S
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < deadline
            self.events.append(self._next())
        # What is painted late would be asked for by now.
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")

    def size(self, width: int, height: int = 900) -> None:
        """Give the page a size, px; up to 720 px it is a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width <= 720
        )

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save the whole page as a picture."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        data = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        return base64.b64decode(data)

    def requested(self) -> list[str]:
        """Return the addresses that the page asked for."""
        asked = (event for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def complaints(self) -> list[str]:
        """Return what is on the console: messages, exceptions, and what the browser itself says."""
        told = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in told]

    def _next(self) -> dict[str, Any]:
        """Return the next message of the browser."""
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, (self._folder / "browser.log").read_text()
            piece = os.read(self._read, 1 << 20)
            assert piece, (self._folder / "browser.log").read_text()
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
