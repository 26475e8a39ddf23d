"""A real collector over a data set, on two cores, and what a question to it takes.

Units: s; MiB of memory that a process holds in RAM.
Source: VmHWM, clear_refs, utime and stime of proc(5).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CORES = 2
_READY_S = 120.0
_RESET_PEAK = "5"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a question took: seconds of each run, CPU time of the collector for one, its memory at the peak."""

    runs_s: tuple[float, ...]
    cpu_s: float
    peak_mib: float

    @property
    def median_s(self) -> float:
        """The middle run."""
        return statistics.median(self.runs_s)

    @property
    def p95_s(self) -> float:
        """The run that one of twenty exceeds."""
        return sorted(self.runs_s)[max(0, -(-len(self.runs_s) * 19 // 20) - 1)]


@dataclass(frozen=True, slots=True)
class Served:
    """A running collector: its address and its process."""

    url: str
    pid: int

    def cost(self, ask: Callable[[int], object], runs: int, warm_up: int = 1) -> Cost:
        """Ask `runs` times, each with its number, after `warm_up` times that do not count."""
        for number in range(warm_up):
            ask(-1 - number)
        Path(f"/proc/{self.pid}/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        seconds, cpu_s = [], self._cpu_s()
        for number in range(runs):
            begin_s = time.perf_counter()
            ask(number)
            seconds.append(time.perf_counter() - begin_s)
        return Cost(tuple(seconds), (self._cpu_s() - cpu_s) / runs, _high_water_mib(self.pid))

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S


def run_child(command: list[str], patience_s: float) -> float:
    """Run a program to its end, or for so long; return how much memory it had at its peak, MiB.

    Raises: RuntimeError for another exit code than 0 and 1.
    """
    peak_mib = 0.0
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=out)
        deadline = time.monotonic() + patience_s
        # Looked at while it runs: the ru_maxrss of a child begins with that of its parent.
        while child.poll() is None:
            if time.monotonic() > deadline:
                child.kill()
                child.wait()
                return peak_mib
            peak_mib = max(peak_mib, _high_water_mib(child.pid))
            time.sleep(0.005)
        if child.returncode not in (0, 1):
            out.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {out.read()[-2000:].decode(errors='replace')}")
    return peak_mib


def _high_water_mib(pid: int) -> float:
    """Return the peak of a process so far; 0 of one that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    """Run `tailspan up` over `folder` for the length of the `with` block; it and the caller keep to two cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(allowed)[:CORES]))
    record = folder / "endpoints.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tailspan", "up", "--data", str(folder)]
    ports = ("--otlp-port", "--otlp-http-port", "--http-port", "--admin-port")
    command += [word for flag in ports for word in (flag, "0")]
    with (folder / "collector.log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _READY_S
        while not record.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the collector did not start: {(folder / 'collector.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield Served(str(json.loads(record.read_text(encoding="utf-8"))["clickhouse"]), child.pid)
    finally:
        child.terminate()
        child.wait()
        os.sched_setaffinity(0, allowed)
