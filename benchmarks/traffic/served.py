"""A real collector over a data set, on two cores, and what a question to it takes.

Units: s; MiB of memory that the collector's process holds in RAM.
Source: VmHWM, clear_refs, utime and stime of proc(5).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
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
    """What a question took: seconds of each run, CPU time of the collector for one, memory it took."""

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
        before_mib = self._status_mib("VmRSS")
        seconds, cpu_s = [], self._cpu_s()
        for number in range(runs):
            begin_s = time.perf_counter()
            ask(number)
            seconds.append(time.perf_counter() - begin_s)
        peak_mib = max(0.0, self._status_mib("VmHWM") - before_mib)
        return Cost(tuple(seconds), (self._cpu_s() - cpu_s) / runs, peak_mib)

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    def _status_mib(self, field: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"the kernel does not tell {field}")


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
