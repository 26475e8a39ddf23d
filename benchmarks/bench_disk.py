"""Bytes on disk of a span after all merges: the table, with the rollup and the trace index, beside otel_traces.

The same spans in both schemas, with the indexes that each brings: those of requests, and those with engine steps beside
them. Ids are the agent's (docs/adr/0012): those of requests are random, and an engine step is a trace of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.ingest_paths import Paths
from benchmarks.otlp_load import load
from benchmarks.result import Result

GOAL_BYTES = 30.0
SPANS = 200_000
_BATCH = 40


def run() -> list[Result]:
    """Store in both schemas, merge, look."""
    table, whole, otel = measure(steps=False)
    with_steps, _, otel_with_steps = measure(steps=True)
    return [
        Result("disk.bytes_per_span", table, "B", GOAL_BYTES, peer="otel_traces", peer_value=otel),
        Result("disk.bytes_per_span_with_rollup_and_index", whole, "B", otel, peer="otel_traces", peer_value=otel),
        Result(
            "disk.bytes_per_span_with_engine_steps", with_steps, "B", otel_with_steps,
            peer="otel_traces", peer_value=otel_with_steps,
        ),
    ]  # fmt: skip


def measure(steps: bool) -> tuple[float, float, float]:
    """Return the bytes of a span in our table, with rollup and trace index, and in otel_traces."""
    requests = load(SPANS, steps=steps)
    with tempfile.TemporaryDirectory(prefix="tailspan-bench-") as folder:
        paths = Paths(Path(folder) / "clickhouse")
        for first in range(0, len(requests), _BATCH):
            paths.passed(requests[first : first + _BATCH])
        paths.otel(paths.otel_rows())
        table = paths.bytes_on_disk("tailspan.spans")
        whole = paths.bytes_on_disk("tailspan.spans", "tailspan.stage_minutes", "tailspan.traces")
        otel = paths.bytes_on_disk("otel.otel_traces")
        paths.engine.close()
    return table / SPANS, whole / SPANS, otel / SPANS
