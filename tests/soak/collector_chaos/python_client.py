"""A service with the OpenTelemetry SDK for Python: `python python_client.py PLAN` with a plan in JSON.

Plan: name, protocol (grpc, http/protobuf), endpoint, spans, rate (spans a second at most), gzip, seed, report (a path).
The batch processor's queue is
large and the program waits before it is full, so that only a failed export can lose a span. The report says what was
acknowledged and what was not; the file beside it with the suffix `.progress` counts.
"""

from __future__ import annotations

import json
import logging
import os
import random
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind

QUEUE = 40_000
BATCH = 512
STAGES = ("queue", "prefill", "decode", "respond")
_CONTENT = struct.Struct(">16s8s8s")
_TIMES = struct.Struct("<QQ")


def id_and_content(span: ReadableSpan) -> tuple[int, int]:
    """Return a span's id and the hash of what it says, as `ledger.ROWS` computes them of the table."""
    context = span.get_span_context()
    parent = span.parent.span_id if span.parent is not None else 0
    start, end = span.start_time or 0, span.end_time or 0
    ids = _CONTENT.pack(
        context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"), parent.to_bytes(8, "big")
    )
    return context.span_id, xxhash.xxh64_intdigest(ids + _TIMES.pack(start, end - start) + span.name.encode())


class Ledger(SpanExporter):
    """Passes batches to the real exporter and remembers what became of each span."""

    def __init__(self, exporter: Any, progress: Path) -> None:
        self._exporter, self._progress = exporter, progress
        self.acknowledged, self.ids, self.content = 0, 0, 0
        self.failed: list[tuple[int, int]] = []
        self.failed_exports = 0

    @property
    def settled(self) -> int:
        """Spans whose export is over."""
        return self.acknowledged + len(self.failed)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result: SpanExportResult = self._exporter.export(spans)
        found = [id_and_content(span) for span in spans]
        if result is SpanExportResult.SUCCESS:
            self.acknowledged += len(found)
            self.ids = (self.ids + sum(span_id for span_id, _ in found)) % 2**64
            self.content = (self.content + sum(content for _, content in found)) % 2**64
        else:
            self.failed_exports += 1
            self.failed += found
        self._progress.write_text(f"{self.settled}")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


def exporter(plan: dict[str, Any]) -> Any:
    """Return the exporter that the plan names."""
    if plan["protocol"] == "grpc":
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        compression = grpc.Compression.Gzip if plan["gzip"] else None
        return GrpcExporter(endpoint=plan["endpoint"], insecure=True, compression=compression)
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(
        endpoint=f"{plan['endpoint']}/v1/traces",
        compression=Compression.Gzip if plan["gzip"] else Compression.NoCompression,
    )


def one_request(tracer: trace.Tracer, rng: random.Random, spans: int) -> None:
    """Make the trace of one request: a root and its stages."""
    begin = time.time_ns()
    root = tracer.start_span(
        "POST /v1/chat/completions", kind=SpanKind.SERVER, start_time=begin,
        attributes={
            "tailspan.role": "request", "gen_ai.request.model": rng.choice(("small", "large")),
            "gen_ai.usage.input_tokens": rng.randrange(1, 4000), "tailspan.unattributed_ns": rng.randrange(1000),
            "http.route": "/v1/chat/completions", "rate": rng.random(), "stream": True,
        },
    )  # fmt: skip
    parent = trace.set_span_in_context(root)
    at = begin
    for stage in STAGES[: spans - 1]:
        span = tracer.start_span(
            stage, parent, start_time=at, attributes={"tailspan.role": "stage", "tailspan.stage": stage}
        )
        at += rng.randrange(1, 50_000_000)
        span.end(at)
    root.end(at)


def main(plan: dict[str, Any]) -> None:
    """Send all spans, then write the report."""
    report = Path(plan["report"])
    ledger = Ledger(exporter(plan), report.with_suffix(".progress"))
    processor = BatchSpanProcessor(ledger, max_queue_size=QUEUE, schedule_delay_millis=200, max_export_batch_size=BATCH)
    provider = TracerProvider(
        resource=Resource({"service.name": plan["name"], "service.instance.id": str(os.getpid())}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(processor)
    tracer, rng = provider.get_tracer("chaos", "1"), random.Random(plan["seed"])
    made, begin = 0, time.monotonic()
    while made < plan["spans"]:
        is_early = made > (time.monotonic() - begin) * plan["rate"]
        if is_early or made - ledger.settled > QUEUE - 2 * len(STAGES):
            time.sleep(0.01)
            continue
        size = min(1 + len(STAGES), plan["spans"] - made)
        one_request(tracer, rng, size)
        made += size
    while ledger.settled < made:
        processor.force_flush()
    provider.shutdown()
    content = {
        "made": made,
        "acknowledged": ledger.acknowledged,
        "ids": ledger.ids,
        "content": ledger.content,
        "failed_exports": ledger.failed_exports,
        "failed": ledger.failed,
    }
    report.with_suffix(".new").write_text(json.dumps(content))
    report.with_suffix(".new").rename(report)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the exporters' complaints about the network are what this is about
    main(json.loads(sys.argv[1]))
