"""A real Prometheus in a process of its own, with any configuration; and where its tools are."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.collector import wait_until


def tool(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; without it skip, but fail where everything must run."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed (Debian, Ubuntu: package prometheus)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def promtool(*arguments: str | Path) -> str:
    """Run promtool; return what it printed, and fail with that if it found something wrong."""
    done = subprocess.run([tool("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """Prometheus on a free loopback port, with its data in a folder."""

    def __init__(self, folder: Path, config: str) -> None:
        self._config = folder / "prometheus.yml"
        self._config.write_text(config)
        self._data, self._log = folder / "tsdb", folder / "prometheus.log"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]

    def __enter__(self) -> Self:
        command = [
            tool("prometheus"), f"--config.file={self._config}", f"--storage.tsdb.path={self._data}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
        ]  # fmt: skip
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        assert wait_until(self._is_ready, bool, 30), self._log.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def api(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the HTTP API; an error of the query fails the test."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from error

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the value of every series of an instant query, by its labels."""
        result = self.api("query", query=expression)["result"]
        return {tuple(sorted(item["metric"].items())): float(item["value"][1]) for item in result}
