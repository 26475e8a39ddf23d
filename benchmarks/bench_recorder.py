"""The hot path: CPU time of one record, against one span of the OpenTelemetry SDK with its batch processor.

Both are measured in alternating blocks in one process; the median block counts. The ring is drained by a real reader
between blocks; the SDK's batch processor exports into nothing, which spares it the encoding.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.result import Result
from tailspan.recorder import process
from tailspan.recorder.engine import Engine
from tailspan.recorder.ring import RingReader
from tailspan.settings import WORKER_DIR, Settings

BLOCKS = 41
BLOCK_CALLS = 5_000


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
    return [
        Result("recorder.record", record_us, "us", 1.0, peer="OTel SDK span", peer_value=span_us),
        Result("recorder.step", step_us, "us", 1.0, peer="OTel SDK span", peer_value=span_us),
        Result("recorder.cheaper_than_span", span_us / record_us, "x", 20.0, higher_is_better=True),
    ]


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
