"""Time series under each other: latency, requests and failures, tokens; with what was changed marked through all.

In: a `LatencyReport` in buckets of time, `Change` records. Out: `Markup`.
A bucket without requests breaks a line. The axis of latency is logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from markupsafe import Markup

from tailspan_queries import units
from tailspan_queries.grouping import bucket_text
from tailspan_queries.latency import LatencyReport, LatencyRow
from tailspan_queries.report import svg
from tailspan_queries.report.changes import Change
from tailspan_queries.times import NS_PER_SECOND, Window

LATENCY_PX, RATE_PX, GAP_PX = 210, 84, 36
LINES: tuple[tuple[str, str, Callable[[LatencyRow], float | None]], ...] = (
    ("end-to-end p99", "s-p99", lambda row: row.e2e.p99_ns),
    ("TTFT p99", "s-ttft99", lambda row: row.ttft.p99_ns),
    ("end-to-end p50", "s-p50", lambda row: row.e2e.p50_ns),
    ("TTFT p50", "s-ttft50", lambda row: row.ttft.p50_ns),
)
MARK_PX = 23
"""Distance of two numbers of changes."""
LEFT = {svg.WIDE: 58, svg.NARROW: 48}


def series(report: LatencyReport, window: Window, changes: Sequence[Change], width: float) -> Markup:
    """Return the chart."""
    wide = width == svg.WIDE
    left, right = LEFT[int(width)], width - 8
    across = svg.linear(window.since_ns, window.until_ns, left, right)
    top = 30.0
    latency = svg.Frame(left, top, right, top + LATENCY_PX)
    rates = svg.Frame(left, latency.bottom + GAP_PX, right, latency.bottom + GAP_PX + RATE_PX)
    tokens = svg.Frame(left, rates.bottom + GAP_PX, right, rates.bottom + GAP_PX + RATE_PX)
    drawn = [*latency_panel(report, latency, across, hover=wide), *rate_panel(report, rates, across)]
    drawn += bars_panel(
        report, tokens, across, lambda row: row.rate(row.output_tokens), "output tokens a second", "s-tokens"
    )
    for moment, label in svg.time_ticks(window.since_ns, window.until_ns, 12 if wide else 4):
        drawn.append(svg.text(across(moment), tokens.bottom + 18, label, "tick", "middle"))
        drawn += [svg.line(across(moment), f.top, across(moment), f.bottom, "grid") for f in (latency, rates, tokens)]
    drawn += markers(changes, across, top, tokens.bottom)
    slowest = max(report.rows, key=lambda row: row.e2e.p99_ns or 0.0)
    description = (
        f"{len(report.rows)} buckets of time; end-to-end p99 is largest at {when(report, slowest)}: "
        f"{units.duration(slowest.e2e.p99_ns)}"
    )
    return svg.picture(width, tokens.bottom + 26, "Latency and load over time", description, "series", *drawn)


def latency_panel(report: LatencyReport, frame: svg.Frame, across: svg.Scale, *, hover: bool) -> list[Markup]:
    """Return the lines of latency; with `hover`, each point says its time under the pointer."""
    values = [value for row in report.rows for _, _, get in LINES if (value := get(row)) is not None]
    low, high = svg.log_range(values)
    up = svg.logarithmic(low, high, frame.bottom, frame.top)
    drawn: list[Markup] = []
    for tick in svg.log_ticks(low, high, 7):
        drawn.append(svg.line(frame.left, up(tick), frame.right, up(tick), "grid"))
        drawn.append(svg.text(frame.left - 6, up(tick) + 4, svg.tick_text(tick), "tick", "end"))
    for title, style, get in reversed(LINES):
        drawn += broken_line(report, across, up, get, f"{style} line", title, hover=hover)
    return drawn


def broken_line(
    report: LatencyReport,
    across: svg.Scale,
    up: svg.Scale,
    get: Callable[[LatencyRow], float | None],
    class_: str,
    title: str,
    *,
    hover: bool,
) -> list[Markup]:
    """Return a line through the middles of buckets, broken where one is missing."""
    known = [(row, value) for row in report.rows if (value := get(row)) is not None and value > 0]
    runs: list[list[tuple[LatencyRow, float]]] = [known[:1]] if known else []
    for (earlier, _), found in pairwise(known):
        if (found[0].bucket_ns or 0) - (earlier.bucket_ns or 0) > step_ns(report):
            runs.append([])
        runs[-1].append(found)
    drawn = []
    for run in runs:
        points = [(across(middle(report, row)), up(value)) for row, value in run]
        if len(points) > 1:
            drawn.append(svg.path(points, class_))
        for (x, y), (row, value) in zip(points, run, strict=True):
            tip = f"{when(report, row)} {title}: {units.duration(value)}"
            alone = len(points) == 1
            if alone or hover:
                drawn.append(svg.dot(x, y, f"{class_.split()[0]} {'fill' if alone else 'hover'}", tip, 4))
    return drawn


def rate_panel(report: LatencyReport, frame: svg.Frame, across: svg.Scale) -> list[Markup]:
    """Return bars of requests a second, with those that failed in another colour at the foot."""
    drawn = bars_panel(report, frame, across, lambda row: row.rate(row.requests), "requests a second", "s-requests")
    high = axis_end(report.rows, lambda row: row.rate(row.requests))
    up = svg.linear(0, high, 0, frame.bottom - frame.top)
    for row in report.rows:
        if row.error_count:
            x, size = place(report, row, across)
            height = max(up(row.rate(row.error_count)), 2.0)
            tip = f"{when(report, row)}: {row.error_count:,} failed"
            drawn.append(svg.rect(x, frame.bottom - height, size, height, "s-failed fill", tip))
    return drawn


def bars_panel(
    report: LatencyReport,
    frame: svg.Frame,
    across: svg.Scale,
    get: Callable[[LatencyRow], float],
    title: str,
    style: str,
) -> list[Markup]:
    """Return one bar a bucket, on an axis from 0."""
    high = axis_end(report.rows, get)
    up = svg.linear(0, high, frame.bottom, frame.top)
    drawn = [svg.text(frame.left, frame.top - 8, title, "small strong")]
    for tick in svg.even_ticks(high, 2):
        drawn.append(svg.line(frame.left, up(tick), frame.right, up(tick), "grid"))
        drawn.append(svg.text(frame.left - 6, up(tick) + 4, rate_text(tick), "tick", "end"))
    for row in report.rows:
        x, size = place(report, row, across)
        tip = f"{when(report, row)}: {rate_text(get(row))} {title}"
        drawn.append(svg.rect(x, up(get(row)), size, frame.bottom - up(get(row)), f"{style} fill", tip))
    return drawn


def axis_end(rows: Iterable[LatencyRow], get: Callable[[LatencyRow], float]) -> float:
    """Return the end of an axis from 0: its last round tick."""
    return svg.even_ticks(max(map(get, rows), default=0.0), 2)[-1]


def markers(changes: Sequence[Change], across: svg.Scale, top: float, bottom: float) -> list[Markup]:
    """Return a line through all panels for each change, with its number at the top."""
    drawn: list[Markup] = []
    end = -math.inf
    for change in changes:
        x = across(change.moment_ns)
        end = max(x, end + MARK_PX)
        drawn.append(svg.line(x, top - 6, x, bottom, f"mark m-{change.kind}"))
        drawn.append(flag(change, end, top - 16))
    return drawn


def flag(change: Change, x: float, y: float) -> Markup:
    """Return the number of a change: in a circle for a deployment, in a square for an optimisation."""
    rounded = 10 if change.kind == "deployment" else 3
    box = svg.rect(x - 10, y - 10, 20, 20, f"m-{change.kind} fill", f"{change.number}: {change.text}", rounded)
    return svg.element("g", box, svg.text(x, y + 4.5, str(change.number), f"number m-{change.kind}", "middle"))


def place(report: LatencyReport, row: LatencyRow, across: svg.Scale) -> tuple[float, float]:
    """Return where a bucket's bar begins and how wide it is, as far as the bucket lies in the window."""
    begin = max(row.bucket_ns or 0, report.window.since_ns)
    x, end = across(begin), across(begin + row.seconds * NS_PER_SECOND)
    return x, max(end - x - (1 if end - x > 3 else 0), 0.5)


def middle(report: LatencyReport, row: LatencyRow) -> float:
    """Return the middle of the part of a bucket that lies in the window, ns."""
    return max(row.bucket_ns or 0, report.window.since_ns) + row.seconds * NS_PER_SECOND / 2


def step_ns(report: LatencyReport) -> int:
    """Return the length of a bucket, ns."""
    return report.grouping.step_seconds * NS_PER_SECOND


def when(report: LatencyReport, row: LatencyRow) -> str:
    """Return the begin of a bucket."""
    return bucket_text(row.bucket_ns or 0, report.grouping.step_seconds)


def rate_text(value: float) -> str:
    """Return a rate with three digits."""
    return "0" if not value else f"{value:.3g}" if value < 1000 else units.count(value)
