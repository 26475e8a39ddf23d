"""The two processes under trouble, a collector and a ClickHouse endpoint, and the disk of the first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

from tests.conformance.running import free_port

ENDPOINT = Path(__file__).parents[2] / "support" / "clickhouse_server.py"
_START_S = 60.0


class Disk:
    """A small file system for the collector's data; without root a plain folder, which cannot be filled."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
        is_root = os.geteuid() == 0
        self.can_be_filled = is_root and not subprocess.run(command, check=False, capture_output=True).returncode
        self.ballast = folder / "ballast"

    def fill(self) -> None:
        """Take all room that is left."""
        with self.ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            except OSError:
                pass

    def free(self) -> None:
        """Give the room back."""
        self.ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount."""
        if self.can_be_filled:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class Endpoint:
    """A process that takes inserts as a ClickHouse server does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, str(ENDPOINT), str(self.folder), str(self.port)]
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.rows("select 1")
                return
            except (OSError, urllib.error.URLError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.1)

    def rows(self, sql: str) -> list[list[str]]:
        """Run a query; every value as text."""
        with urllib.request.urlopen(urllib.request.Request(self.url, sql.encode()), timeout=120) as answer:
            return [line.split("\t") for line in answer.read().decode().splitlines()]

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill9(self) -> None:
        """Kill it without notice."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class Collector:
    """`tailspan collector` on fixed ports; started again whenever it ended, as a supervisor would."""

    def __init__(self, data: Path, clickhouse: str, log: Path, *arguments: str) -> None:
        self.data, self.log = data, log
        self.grpc_port, self.http_port, self.admin_port = free_port(), free_port(), free_port()
        ports = ("--otlp-port", self.grpc_port, "--otlp-http-port", self.http_port, "--admin-port", self.admin_port)
        self.command = [sys.executable, "-m", "tailspan", "collector", "--data", str(data), "--clickhouse", clickhouse,
                        *map(str, ports), *arguments]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.exits: Counter[str] = Counter()
        self.peak_bytes = 0

    def start(self) -> None:
        """Start a process; it may need a while until it is ready."""
        (self.data / "endpoints.json").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    @property
    def is_ready(self) -> bool:
        """Whether this process listens."""
        try:
            found = json.loads((self.data / "endpoints.json").read_text())
        except (OSError, ValueError):
            return False
        return self.process is not None and found["pid"] == self.process.pid

    def wait_ready(self, timeout: float = _START_S) -> bool:
        """Wait until it listens, starting it again if it gives up; return whether it does."""
        deadline = time.monotonic() + timeout
        while not self.is_ready and time.monotonic() < deadline:
            self.supervise()
            time.sleep(0.05)
        return self.is_ready

    def supervise(self) -> None:
        """Start it again if it ended by itself, and look at its memory."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            self.exits[f"exit {code}"] += 1
            time.sleep(0.2)
            self.start()
            return
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            self.peak_bytes = max(self.peak_bytes, *(int(line.split()[1]) * 1024 for line in status.splitlines()
                                                     if line.startswith("VmHWM:")))  # fmt: skip
        except (OSError, TypeError, ValueError):
            pass

    def kill9(self) -> None:
        """Kill it without notice and start it again."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.start()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        full = f"tailspan_collector_{name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{full}{{", f"{full} ")))

    def stop(self, timeout: float = 180.0) -> int:
        """Ask it to end; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)
