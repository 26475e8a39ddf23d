"""A real agent process beside a benchmark, and what it costs in CPU time.

Source: utime and stime of /proc/PID/stat, proc(5), clock ticks of 10 ms; threads that ended are included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailspan.settings import WORKER_DIR

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """A running agent and the folder that it reads."""

    pid: int
    directory: Path

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    def wait_idle(self, look_s: float = 0.5, timeout_s: float = 60.0) -> None:
        """Return once it has used next to no CPU for a while: it has started, or everything is read and exported."""
        deadline = time.monotonic() + timeout_s
        before_s = self.cpu_s()
        while time.monotonic() < deadline:
            time.sleep(look_s)
            now_s = self.cpu_s()
            if now_s - before_s <= look_s / 10:
                return
            before_s = now_s
        raise TimeoutError(f"the agent is still busy after {timeout_s:g} s")


def find_agent(directory: Path, timeout_s: float = 30.0) -> AgentProcess:
    """Return the agent that somebody started for a folder, once it has come to rest."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            words = _words(entry)
            if b"tailspan.agent" in words and os.fsencode(directory) in words and (directory / "agent.lock").exists():
                found = AgentProcess(int(entry.parent.name), directory)
                found.wait_idle(look_s=0.3)
                return found
        time.sleep(0.05)
    raise TimeoutError("the agent did not start")


def _words(cmdline: Path) -> list[bytes]:
    try:
        return cmdline.read_bytes().split(b"\0")
    except OSError:
        return []


@contextmanager
def agent(endpoint: str, core: int | None = None) -> Iterator[AgentProcess]:
    """Run an agent for a new worker folder, which the environment then names; bind it to one core if asked.

    It ends when the recorder of this process (or another one of the folder) has said good-bye.
    """
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tailspan-bench-", dir=base, ignore_cleanup_errors=True) as folder:
        before = os.environ.get(WORKER_DIR)
        os.environ[WORKER_DIR] = folder
        command = [sys.executable, "-m", "tailspan.agent", folder, "--linger", "30"]
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        try:
            if core is not None:
                os.sched_setaffinity(child.pid, {core})
            yield find_agent(Path(folder))
            child.wait(60)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            os.environ.pop(WORKER_DIR)
            if before is not None:
                os.environ[WORKER_DIR] = before
