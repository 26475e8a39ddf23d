"""Histograms on a log axis of time, with the median and p99 that `tailspan latency` prints marked.

In: rows of query `latency_buckets`, `Percentiles`. Out: `Markup`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from tailspan_queries import units
from tailspan_queries.latency import Percentiles
from tailspan_queries.report import svg
from tailspan_queries.report.answers import BucketRow

HEIGHT = 190
MARKED = ("p50", "p99")


def histogram(rows: Sequence[BucketRow], times: Percentiles, title: str, noun: str, key: str, width: float) -> Markup:
    """Return the chart of one metric; `noun` is what is counted."""
    frame = svg.Frame(8, 34, width - 8, HEIGHT - 26)
    low, high = rows[0].low_ns / 2**0.25, rows[-1].high_ns * 2**0.25
    across = svg.logarithmic(low, high, frame.left, frame.right)
    up = svg.linear(0, max(row.count for row in rows), frame.bottom, frame.top)
    total = sum(row.count for row in rows)
    drawn = [svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")]
    for row in rows:
        x, end = across(row.low_ns), across(row.high_ns)
        span = f"{units.duration(row.low_ns)} to {units.duration(row.high_ns)}"
        tip = f"{span}: {row.count:,} {noun}, {units.percent(row.count / total)}"
        drawn.append(svg.rect(x, up(row.count), end - x - 1, frame.bottom - up(row.count), "s-bars fill", tip, 1.5))
    for tick in svg.log_ticks(low, high, 9 if width == svg.WIDE else 6):
        drawn.append(svg.line(across(tick), frame.bottom, across(tick), frame.bottom + 5, "axis"))
        anchor = "end" if across(tick) > frame.right - 20 else "start" if across(tick) < frame.left + 20 else "middle"
        drawn.append(svg.text(across(tick), frame.bottom + 20, svg.tick_text(tick), "tick", anchor))
    drawn += quantile_marks(times, across, frame)
    said = f"{total:,} {noun}; " + ", ".join(
        f"{name} {units.duration(getattr(times, f'{name}_ns'))}" for name in ("p50", "p90", "p99")
    )
    return svg.picture(width, HEIGHT, f"Distribution of {title}", said, key, *drawn)


def quantile_marks(times: Percentiles, across: svg.Scale, frame: svg.Frame) -> list[Markup]:
    """Return a line for median and p99, with their times above, apart from each other."""
    drawn: list[Markup] = []
    for name in MARKED:
        value = getattr(times, f"{name}_ns")
        if value is None or value <= 0 or not math.isfinite(value):
            continue
        x = min(max(across(value), frame.left), frame.right)
        anchor = "end" if (name == "p50") == (x > frame.left + 110) or x > frame.right - 110 else "start"
        drawn.append(svg.line(x, frame.top - 8, x, frame.bottom, "mark m-quantile"))
        shift = -6 if anchor == "end" else 6
        height = frame.top - 20 if name == "p50" else frame.top - 4
        drawn.append(svg.text(x + shift, height, f"{name} {units.duration(value)}", "strong small", anchor))
    return drawn
