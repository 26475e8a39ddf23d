"""ClickHouse's side of an insert: CPU time a span at 20,000 spans, by batch size, and what an insert costs by itself.

An embedded ClickHouse does the work in this process, so that the process's CPU time is ClickHouse's. Beside it, on the
same spans: rows of otel_traces as rotel and the OpenTelemetry Collector insert them, decoding in Python before that,
and already flat rows of our own table in Native format, which is the floor. Merges are stopped; see `bench_disk` for
what is stored. `long_windows` is what the rollup by the hour and the stored sample add to an insert.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.ingest_paths import Paths, decode_rows
from benchmarks.otlp_load import SPANS_A_REQUEST, load
from benchmarks.result import Result

GOAL_US = 6.0
GOAL_FIXED_MS = 40.0
SIZES = (1, 40, 120)
"""Requests an insert, of 512 spans."""
AT = 40
LONG_WINDOWS = ("stage_hours_mv", "spans_sample_mv")
GOAL_LONG_WINDOWS_MS = 20.0
"""Chosen."""
ROUNDS = 7


def run() -> list[Result]:
    """Insert the same spans in every way, in turn."""
    requests = load(SIZES[-1] * SPANS_A_REQUEST)
    with tempfile.TemporaryDirectory(prefix="tailspan-bench-") as folder:
        paths = Paths(Path(folder) / "clickhouse")
        paths.engine.command("system stop merges")
        paths.passed(requests[:AT])
        native, otel = paths.flat_rows(), paths.otel_rows()
        seconds: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for size in SIZES:
                seconds.setdefault(f"{size}", []).append(paths.passed(requests[:size]))
            with paths.without(LONG_WINDOWS):
                for size in (1, AT):
                    seconds.setdefault(f"{size} without", []).append(paths.passed(requests[:size]))
            seconds.setdefault("native", []).append(paths.native(native))
            seconds.setdefault("otel", []).append(paths.otel(otel))
        begin_s = time.process_time()
        decode_rows(requests[:AT])
        decode_s = time.process_time() - begin_s
        paths.engine.close()
    median = {name: statistics.median(values) for name, values in seconds.items()}
    spans = AT * SPANS_A_REQUEST
    fixed_s, slope_s = fit([(size * SPANS_A_REQUEST, median[f"{size}"]) for size in SIZES])
    per_span = {name: value / spans * 1e6 for name, value in median.items()}
    python_us = decode_s / spans * 1e6 + per_span["otel"]
    at_20k_us = per_span[f"{AT}"]
    return [
        Result("ingest.cpu_per_span_at_20k", at_20k_us, "us", GOAL_US, peer="otel_traces", peer_value=per_span["otel"]),
        Result("ingest.cpu_per_span_beside_python", at_20k_us, "us", python_us / 2,
               peer="Python decode + insert", peer_value=python_us),
        Result("ingest.cpu_per_span_beside_floor", at_20k_us, "us", GOAL_US,
               peer="flat rows, Native", peer_value=per_span["native"]),
        Result("ingest.fixed_cost_of_an_insert", fixed_s * 1e3, "ms", GOAL_FIXED_MS),
        Result("ingest.cpu_per_further_span", slope_s * 1e6, "us", GOAL_US),
        *(
            Result(f"ingest.long_windows.at_{size * SPANS_A_REQUEST}_spans", added_s(seconds, size) * 1e3, "ms",
                   GOAL_LONG_WINDOWS_MS)
            for size in (1, AT)
        ),
    ]  # fmt: skip


def added_s(seconds: dict[str, list[float]], size: int) -> float:
    """Return what the views for long windows add to an insert: the median of the differences of each round."""
    pairs = zip(seconds[f"{size}"], seconds[f"{size} without"], strict=True)
    return statistics.median(whole - less for whole, less in pairs)


def fit(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return seconds of an insert without spans, and seconds of each span, by least squares."""
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return mean_y - slope * mean_x, slope
