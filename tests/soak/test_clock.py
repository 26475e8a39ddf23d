"""The wall clock jumps while requests are served: spans keep their true length, and children stay in their parents.

The clock is stepped inside Python: libfaketime 0.9.10, with the monotonic clock left alone, makes `time.sleep` fail
with EINVAL on CPython 3.11.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import defaultdict
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tests.soak.worker import PROGRAMS, Worker
from tests.support.otlp_sink import OtlpSink, attributes_of

HOUR_S = 3600


def test_the_wall_clock_is_stepped(worker: Worker, sink: OtlpSink) -> None:
    """Forward and back by an hour every fifth of a second; the agent looks at the clock ten times a second."""
    run_stepped(worker, sink, seconds=1.2, every_s=0.2)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_wall_clock_is_stepped_for_long(worker: Worker, sink: OtlpSink) -> None:
    """The same for a minute."""
    run_stepped(worker, sink, seconds=60, every_s=0.7)


def run_stepped(worker: Worker, sink: OtlpSink, seconds: float, every_s: float) -> None:
    """Step the clock of worker and agent in Python."""
    clock = worker.folder / "clock"
    clock.write_text("0")
    log = worker.folder / "log"
    child = worker.start(
        "serve_for.py", str(seconds), str(log),
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint, TEST_CLOCK_FILE=str(clock),
        PYTHONPATH=os.pathsep.join((str(PROGRAMS / "stepped_clock"), os.environ.get("PYTHONPATH", ""))),
    )  # fmt: skip
    for step in itertools.cycle((HOUR_S, -HOUR_S, 0)):
        if child.poll() is not None:
            break
        write(clock, str(step))
        time.sleep(every_s)
    assert child.returncode == 0, worker.stderr()
    worker.wait_clean()
    check(sink.spans, log)


def write(clock: Path, text: str) -> None:
    """Change the file at once: a reader never sees it empty."""
    fresh = clock.with_suffix(".new")
    fresh.write_text(text)
    shutil.move(fresh, clock)


def check(spans: list[Span], log: Path) -> None:
    """The clock did move, and nothing is negative, torn or of another length than the worker measured."""
    lengths = dict(line.split() for line in log.read_text().splitlines())
    roots = {span.span_id.hex(): span for span in spans if span.kind == Span.SPAN_KIND_SERVER}
    assert roots.keys() == lengths.keys()
    starts = [span.start_time_unix_nano for span in roots.values()]
    assert max(starts) - min(starts) > HOUR_S * 1e9, "the agent never saw a step: this test tests nothing"
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    children_of: dict[bytes, list[Span]] = defaultdict(list)
    for span in spans:
        children_of[span.parent_span_id].append(span)
    for key, root in roots.items():
        assert root.end_time_unix_nano - root.start_time_unix_nano == int(lengths[key])
        children = children_of[root.span_id]
        assert [child.name for child in children][:3] == ["queue", "prefill", "decode"]
        walls = 0
        for child in children:
            assert root.start_time_unix_nano <= child.start_time_unix_nano
            assert child.end_time_unix_nano <= root.end_time_unix_nano
            walls += child.end_time_unix_nano - child.start_time_unix_nano
        assert walls + attributes_of(root.attributes)[attr.UNATTRIBUTED_NS] == int(lengths[key])
    steps = [span for span in spans if attributes_of(span.attributes).get(attr.ROLE) == attr.ROLE_STEP]
    assert len(steps) == 2 * len(roots)
    assert all(3e6 <= span.end_time_unix_nano - span.start_time_unix_nano < 3e9 for span in steps)
