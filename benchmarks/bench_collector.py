"""The collector process: CPU time a span and peak memory, beside rotel under the same load and into the same endpoint.

The load (`otlp_load`) is sent over OTLP/gRPC by this process, to one collector after the other, as a fleet sends it:
many senders, each with a connection of its own and one request under way. Each collector writes into a
ClickHouse-compatible endpoint in a process of its own. Measured is what comes after its start and a warm-up: CPU time
of the collector's process, user and system, from the first request until all spans are rows. Peak memory is that of the
process since its start.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc

from benchmarks import rotel
from benchmarks.clickhouse_endpoint import endpoint
from benchmarks.otlp_load import load
from benchmarks.result import Result

GOAL_US = 1.2
GOAL_RATIO = 4.0
GOAL_MIB = 512
SPANS = 400_000
ROUNDS = 3
SENDERS = 16
_WARM_UP_SPANS = 20_480
_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Round:
    """What one collector needed for one load."""

    us_per_span: float
    peak_mib: float


def run() -> list[Result]:
    """Measure both in turn."""
    warm_up, requests = load(_WARM_UP_SPANS, seed=2), load(SPANS)
    rotel.program()
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(one_round(warm_up, requests, _tailspan, "tailspan.spans"))
        theirs.append(one_round(warm_up, requests, _rotel, "otel.otel_traces"))
    us, rotel_us = (statistics.median(item.us_per_span for item in side) for side in (ours, theirs))
    mib, rotel_mib = (max(item.peak_mib for item in side) for side in (ours, theirs))
    return [
        Result("collector.cpu_per_span", us, "us", GOAL_US, peer="rotel", peer_value=rotel_us),
        Result("collector.times_cheaper_than_rotel", rotel_us / us, "x", GOAL_RATIO, higher_is_better=True),
        Result("collector.peak_memory", mib, "MiB", GOAL_MIB, peer="rotel", peer_value=rotel_mib),
    ]


def one_round(
    warm_up: list[bytes],
    requests: list[bytes],
    start: Callable[[str, Path], tuple[subprocess.Popen[bytes], int]],
    table: str,
) -> Round:
    """Send the load to one collector."""
    with tempfile.TemporaryDirectory(prefix="tailspan-bench-") as name, endpoint(Path(name) / "target") as url:
        _query(url, "create database if not exists otel")
        _query(url, rotel.OTEL_TRACES)
        child, port = start(url, Path(name))
        with _ended(child):
            _send(warm_up, port)
            _wait_rows(url, table, _WARM_UP_SPANS)
            before_s = _cpu_s(child.pid)
            _send(requests, port)
            _wait_rows(url, table, _WARM_UP_SPANS + SPANS)
            return Round((_cpu_s(child.pid) - before_s) / SPANS * 1e6, _peak_mib(child.pid))


def _tailspan(url: str, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    data = folder / "data"
    command = [sys.executable, "-m", "tailspan", "collector", "--clickhouse", url, "--data", str(data)]
    ports = [word for flag in ("--otlp-port", "--otlp-http-port", "--admin-port") for word in (flag, "0")]
    child = subprocess.Popen([*command, *ports], stdout=subprocess.DEVNULL)
    record = data / "endpoints.json"
    _wait(lambda: record.exists() or child.poll() is not None)
    endpoints = json.loads(record.read_text())
    _wait(lambda: _is_ready(endpoints["admin"]) or child.poll() is not None)
    return child, int(endpoints["otlp"].rpartition(":")[2])


def _rotel(url: str, _: Path) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = rotel.start(url, port)
    _wait(lambda: _accepts(port) or child.poll() is not None)
    return child, port


def _send(requests: list[bytes], port: int) -> None:
    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(lambda first: _send_one_by_one(requests[first::SENDERS], port), range(SENDERS)))


def _send_one_by_one(requests: list[bytes], port: int) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]  # else all channels of a process share one connection
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        export = channel.unary_unary(_EXPORT)
        for request in requests:
            _until_taken(export, request)


def _until_taken(export: Callable[..., bytes], request: bytes) -> None:
    while True:
        try:
            export(request, timeout=60)
            return
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(0.1)


def _wait_rows(url: str, table: str, rows: int) -> None:
    # Not `count()`, which fails while the table is not there.
    sql = f"select ifNull(sum(total_rows), 0) from system.tables where concat(database, '.', name) = '{table}'"
    _wait(lambda: int(_query(url, sql)) >= rows)


def _query(url: str, sql: str) -> bytes:
    try:
        with urlopen(url, sql.encode()) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        raise RuntimeError(f"{sql[:100]}: {error.read()[:500]!r}") from error


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {_PATIENCE_S:g} s")
        time.sleep(0.1)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(admin: str) -> bool:
    """Whether ClickHouse answers, which a collector says only once it has applied the schema."""
    try:
        with urlopen(f"{admin}/readyz") as answer:
            return bool(json.loads(answer.read())["clickhouse"]["answers"])
    except OSError:
        return False


def _cpu_s(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # the clock of a process' CPU time, as clock_getcpuclockid(3) gives it


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        child.terminate()
        child.wait(60)
