"""Many processes and threads write at once, and fork where they like: every record once, each writer's in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan.recorder import layout
from tailspan.recorder.layout import Kind
from tailspan.recorder.reader import RingReader
from tailspan.settings import WORKER_DIR
from tests.soak.worker import PROGRAMS
from tests.support.otlp_sink import OtlpSink, attributes_of

ALL_THREADS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """What `many_writers.py` is told. 10 processes at most, 64 threads over all of them."""

    threads: int
    records: int
    forks: tuple[tuple[int, int], ...]
    ring_records: int
    pause_every: int

    @property
    def writers(self) -> int:
        """Threads that write, over all processes."""
        return self.threads * (1 + len(self.forks))

    def start(self, folder: Path, *, raw: bool) -> subprocess.Popen[bytes]:
        """Start the program with its rings in `folder`."""
        words = {"threads": self.threads, "records": self.records, "forks": self.forks, "pause_every": self.pause_every}
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TAILSPAN_"))}
        env |= {WORKER_DIR: str(folder), "TAILSPAN_RING_RECORDS": str(self.ring_records)}
        command = [sys.executable, str(PROGRAMS / "many_writers.py"), json.dumps(words | {"raw": raw})]
        return subprocess.Popen(command, env=env)


@st.composite
def plans(draw: st.DrawFn, max_records: int) -> Plan:
    """Draw processes, threads, records, forks, and rings that are small enough to wrap and to overflow."""
    processes = draw(st.integers(1, 10))
    threads = draw(st.integers(1, max(1, ALL_THREADS // processes)))
    records = draw(st.integers(1, max_records))
    moment = st.tuples(st.integers(0, threads - 1), st.integers(0, records - 1))
    forks = draw(st.lists(moment, min_size=0, max_size=processes - 1, unique=True))
    return Plan(threads, records, tuple(forks), draw(st.sampled_from((256, 1024, 16384))), draw(st.integers(5, 200)))


FEW = settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(plan=plans(max_records=400))
def test_rings_keep_every_record_in_order(plan: Plan) -> None:
    """What a reader takes out while the writers write is what they wrote, less what the rings count as dropped."""
    check_rings(plan)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@MANY
@given(plan=plans(max_records=5000))
def test_rings_keep_every_record_in_order_for_long(plan: Plan) -> None:
    """The same with up to 320,000 records a run."""
    check_rings(plan)


def check_rings(plan: Plan) -> None:
    """Read beside the writers, then compare."""
    with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
        child = plan.start(Path(folder), raw=True)
        readers: dict[Path, RingReader] = {}
        read: dict[Path, list[bytes]] = defaultdict(list)
        while child.poll() is None:
            take(Path(folder), readers, read)
            time.sleep(0.002)
        assert child.returncode == 0
        for _ in range(3):  # a record is handed out one pass after it is first seen
            take(Path(folder), readers, read)
        dropped = sum(reader.dropped for reader in readers.values())
        for reader in readers.values():
            assert reader.closed
            reader.close()
    numbers: dict[int, list[int]] = defaultdict(list)
    rings_of: dict[int, set[Path]] = defaultdict(set)
    for path, slots in read.items():
        for writer, number, pid in records(slots):
            assert pid == int(path.name.split("-")[0])
            numbers[writer].append(number)
            rings_of[writer].add(path)
    assert all(len(paths) == 1 for paths in rings_of.values())
    assert all(seen == sorted(set(seen)) for seen in numbers.values())
    assert sum(map(len, numbers.values())) + dropped == plan.writers * plan.records


def take(folder: Path, readers: dict[Path, RingReader], read: dict[Path, list[bytes]]) -> None:
    """Read what there is, as the agent does."""
    for path in folder.glob("*.ring"):
        if path not in readers:
            try:
                readers[path] = RingReader(path)
            except ValueError:
                continue
    for path, reader in readers.items():
        read[path] += reader.read()


def records(slots: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield (writer, number, pid)."""
    for slot in slots:
        kind, _, _, writer, number, pid, _, _, _, _ = layout.RECORD.unpack(slot)
        assert kind == Kind.QUEUED
        yield writer, number, pid


@settings(FEW, max_examples=2)
@given(plan=plans(max_records=40))
def test_the_agent_exports_every_request_in_order(plan: Plan) -> None:
    """Through a real agent every request of every writer is one span, and a writer's spans begin in its order."""
    check_agent(plan)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(MANY, max_examples=40)
@given(plan=plans(max_records=400))
def test_the_agent_exports_every_request_in_order_for_long(plan: Plan) -> None:
    """The same with up to 25,600 requests a run."""
    check_agent(plan)


def check_agent(plan: Plan) -> None:
    """Run the program beside an agent; rings that are small leave whole requests out and count them."""
    with OtlpSink() as sink, tempfile.TemporaryDirectory(dir=shared_memory(), ignore_cleanup_errors=True) as base:
        folder = Path(base) / "worker"
        folder.mkdir()
        env = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}
        command = [sys.executable, "-m", "tailspan.agent", str(folder), "--linger", "30"]
        agent = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        readers: dict[Path, RingReader] = {}
        writers = plan.start(folder, raw=False)
        while writers.poll() is None:
            watch(folder, readers)
            time.sleep(0.005)
        assert writers.returncode == 0
        watch(folder, readers)
        _, errors = agent.communicate(timeout=60)
        left_out = sum(reader.dropped_requests for reader in readers.values())
        assert sum(reader.dropped for reader in readers.values()) == 0
        assert agent.returncode == 0, errors
        roots = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    starts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in roots:
        attributes = attributes_of(span.attributes)
        starts[attributes["tailspan.test.writer"]].append(
            (attributes["tailspan.test.number"], span.start_time_unix_nano)
        )
    assert len(roots) + left_out == plan.writers * plan.records, errors
    for seen in starts.values():
        assert len({number for number, _ in seen}) == len(seen)
        by_number = [start for _, start in sorted(seen)]
        assert by_number == sorted(by_number)


def watch(folder: Path, readers: dict[Path, RingReader]) -> None:
    """Map the rings, to see their counters when the agent has removed them."""
    for path in folder.glob("*.ring"):
        if path not in readers:
            try:
                readers[path] = RingReader(path)
            except (ValueError, FileNotFoundError):
                continue


def shared_memory() -> str | None:
    """Where rings live, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
