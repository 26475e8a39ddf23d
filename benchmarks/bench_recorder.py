"""The hot path: CPU time of one record, against one span of the OpenTelemetry SDK with its batch processor.

Both are measured in alternating blocks in one process; the median block counts. The ring is drained by a real reader
between blocks; the SDK's batch processor exports into nothing, which spares it the encoding.

The tail is measured beside a busy agent: a process of its own that drains the same ring, builds spans and exports them
while each record is timed by itself. Wall time, less the median cost of reading the clock; it holds whatever the
machine's scheduler does to us, and an SDK span's beside it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.agents import agent
from benchmarks.pairs import quantile
from benchmarks.result import Result
from benchmarks.sink import sink
from tailspan.recorder import begin_request, process
from tailspan.recorder.engine import Engine
from tailspan.recorder.reader import RingReader
from tailspan.settings import WORKER_DIR, Settings

BLOCKS = 41
BLOCK_CALLS = 5_000
TAIL_CALLS, TAIL_BURST, TAIL_PAUSE_S = 40_000, 40, 0.005
"""8,000 records a second in bursts of 40, as when a batch of requests joins: the agent works and the ring has room."""
TAIL_GOAL_US = 50.0
"""No goal of the design, but what separates a slow record from a pause of milliseconds."""


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def run() -> list[Result]:
    """Return the cost of one record and how many times a span costs more."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        os.environ[WORKER_DIR] = folder
        process.start(Settings.from_environment())
        engine = Engine("bench", "model")
        engine.finish(1, 1, 1, 1)
        (path,) = Path(folder).glob("*.ring")
        reader = RingReader(path)
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(_Nowhere(), max_queue_size=BLOCK_CALLS * 2))
        tracer = provider.get_tracer("bench")

        def record() -> None:
            engine.join(1, 2, process.now_ns(), 3)

        def step() -> None:
            begin = process.now_ns()
            engine.step(1, begin, process.now_ns(), requests=8, prefill_tokens=0, decode_tokens=8, waiting=2)

        def span() -> None:
            with tracer.start_as_current_span("step") as started:
                started.set_attribute("requests", 8)
                started.set_attribute("tokens", 8)

        record_us, step_us, span_us = _interleave(record, step, span, after=lambda: _drain(reader))
        provider.shutdown()
        process.close()
    del os.environ[WORKER_DIR]
    tail_us, span_tail_us = _tails()
    return [
        Result("recorder.record", record_us, "us", 1.0, peer="OTel SDK span", peer_value=span_us),
        Result("recorder.step", step_us, "us", 1.0, peer="OTel SDK span", peer_value=span_us),
        Result("recorder.cheaper_than_span", span_us / record_us, "x", 20.0, higher_is_better=True),
        Result(
            "recorder.record_p99_9_beside_a_busy_agent", tail_us, "us", TAIL_GOAL_US,
            peer="OTel SDK span", peer_value=span_tail_us,
        ),
    ]  # fmt: skip


def _tails() -> tuple[float, float]:
    """Return the p99.9 of a record and of an SDK span, both beside what exports them, in microseconds."""
    with sink() as endpoint, agent(endpoint) as running:
        process.start(Settings.from_environment())
        engine = Engine("bench", "model")
        provider = TracerProvider()
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True)
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4 * TAIL_CALLS))
        tracer = provider.get_tracer("bench")
        key = begin_request("bench", process.now_ns()).key
        step_number = iter(range(1, 1 << 60))

        def record() -> None:
            # The dearest one for the agent: a span each.
            engine.step(next(step_number), 1, 2, requests=8, prefill_tokens=0, decode_tokens=8)

        def join() -> None:
            engine.join(key, 1, 2, 3)

        def span() -> None:
            with tracer.start_as_current_span("step") as started:
                started.set_attribute("requests", 8)
                started.set_attribute("tokens", 8)

        join()
        clock_ns = statistics.median(_one_by_one(lambda: None, 2_000, 0))
        busy_s = running.cpu_s()
        taken = _one_by_one(record, TAIL_CALLS, TAIL_PAUSE_S)
        if running.cpu_s() - busy_s < 0.1:
            raise RuntimeError("the agent was not busy")
        running.wait_idle()
        spans = _one_by_one(span, TAIL_CALLS, TAIL_PAUSE_S)
        # Only now: opening the file in the process that writes it lets go of the lock by which the agent sees it live.
        (reader,) = map(RingReader, running.directory.glob("*.ring"))
        process.close()
        if reader.dropped or reader.dropped_requests:
            raise RuntimeError(f"{reader.dropped} records found the ring full")
        reader.close()
        provider.shutdown()
    return (quantile(taken, 0.999) - clock_ns) / 1000, (quantile(spans, 0.999) - clock_ns) / 1000


def _one_by_one(call: Callable[[], None], count: int, pause_s: float) -> list[float]:
    clock = time.perf_counter_ns
    taken = []
    for number in range(count):
        begin = clock()
        call()
        taken.append(clock() - begin)
        if pause_s and number % TAIL_BURST == 0:
            time.sleep(pause_s)
    return [float(value) for value in taken]


def _interleave(*calls: Callable[[], None], after: Callable[[], None]) -> list[float]:
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(BLOCKS):
        for call, own in zip(calls, samples, strict=True):
            begin = time.thread_time_ns()
            for _ in range(BLOCK_CALLS):
                call()
            own.append((time.thread_time_ns() - begin) / BLOCK_CALLS / 1000)
            after()
    return [statistics.median(own) for own in samples]


def _drain(reader: RingReader) -> None:
    reader.read()
    while reader.pending:
        reader.read()
