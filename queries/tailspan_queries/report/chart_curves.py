"""Percentile curves: how long requests and each stage take, from the median to one request in a thousand.

In: a `StageReport`. Out: `Markup`. Both axes are logarithmic: that of time, and that of the requests that are slower.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from tailspan_queries import units
from tailspan_queries.diagnosis import needed, quantile_name
from tailspan_queries.records import QUANTILES, REQUEST, StageReport, StageRow
from tailspan_queries.report import svg
from tailspan_queries.report.palette import stage_class

HEIGHT = {svg.WIDE: 400, svg.NARROW: 330}
MOST = {svg.WIDE: 8, svg.NARROW: 5}
"""Stages that are drawn: those with the largest p99."""
LEAST_NS = 1e4
"""Stages that never take longer are not drawn: they would stretch the axis."""
LABEL_PX = 16
MARKS = 5
"""Shapes of the marks, so that lines differ by more than colour."""


def drawn_rows(report: StageReport, width: float) -> list[StageRow]:
    """Return the rows that are drawn, the slowest at p99 first; end-to-end among them."""
    rows = [row for row in report.rows if row.wall.p99_ns > LEAST_NS or row.stage == REQUEST]
    rows.sort(key=lambda row: (row.stage != REQUEST, -row.wall.p99_ns))
    return rows[: MOST[int(width)] + 1]


def curve(row: StageRow) -> list[tuple[float, float]]:
    """Return the points of a row: minus the log of the slower share, and the time, ns; without those of no time."""
    points = [(-math.log10(1 - q), getattr(row.wall, f"{name}_ns")) for name, q in QUANTILES.items()]
    return [(x, y) for x, y in points if y > 0]


def curves(report: StageReport, width: float) -> Markup:
    """Return the chart."""
    wide, height = width == svg.WIDE, HEIGHT[int(width)]
    frame = svg.Frame(58, 12, width - (150 if wide else 12), height - 40)
    rows = drawn_rows(report, width)
    low, high = svg.log_range([y for row in rows for _, y in curve(row)])
    across = svg.linear(-math.log10(0.5), 3.0, frame.left + 8, frame.right - 8)
    up = svg.logarithmic(low, high, frame.bottom, frame.top)
    drawn = axes(frame, low, high, up, across)
    for place, row in enumerate(reversed(rows)):
        drawn += draw_row(report, row, across, up, place)
    if wide:
        drawn += labels(rows, frame.right + 10, up)
    description = "; ".join(
        f"{row.stage}: p50 {units.duration(row.wall.p50_ns)}, p99 {units.duration(row.wall.p99_ns)}" for row in rows
    )
    return svg.picture(width, height, "Percentiles of end-to-end time and of the stages", description, "curves", *drawn)


def axes(frame: svg.Frame, low: float, high: float, up: svg.Scale, across: svg.Scale) -> list[Markup]:
    """Return grid and labels of both axes."""
    drawn: list[Markup] = []
    for tick in svg.log_ticks(low, high, 9):
        drawn.append(svg.line(frame.left, up(tick), frame.right, up(tick), "grid"))
        drawn.append(svg.text(frame.left - 8, up(tick) + 4, svg.tick_text(tick), "tick", "end"))
    for quantile in QUANTILES.values():
        x = across(-math.log10(1 - quantile))
        drawn.append(svg.line(x, frame.top, x, frame.bottom, "grid"))
        drawn.append(svg.text(x, frame.bottom + 18, quantile_name(quantile), "tick", "middle"))
    middle = (frame.left + frame.right) / 2
    drawn.append(svg.text(middle, frame.bottom + 36, "share of requests that are at least as fast", "tick", "middle"))
    return drawn


def draw_row(report: StageReport, row: StageRow, across: svg.Scale, up: svg.Scale, place: int) -> list[Markup]:
    """Return one line with its marks; a mark is hollow where the requests are too few for the percentile."""
    style = stage_class(row.stage)
    whole = row.stage == REQUEST
    drawn = [svg.path([(across(x), up(y)) for x, y in curve(row)], f"{style} line{' heavy' if whole else ''}")]
    for name, quantile in QUANTILES.items():
        value = getattr(row.wall, f"{name}_ns")
        if value <= 0:
            continue
        few = report.kept_requests < needed(quantile)
        tip = f"{row.stage} {quantile_name(quantile)}: {units.duration(value)}" + (" (few requests)" if few else "")
        x, y = across(-math.log10(1 - quantile)), up(value)
        drawn.append(mark(x, y, place, f"{style} {'hollow' if few else 'fill'}", tip))
    return drawn


def mark(x: float, y: float, place: int, class_: str, tip: str) -> Markup:
    """Return a mark: circle, square, triangle, diamond, or triangle upside down."""
    shapes = {
        1: f"M{x - 3.5:.1f},{y - 3.5:.1f}h7v7h-7z",
        2: f"M{x:.1f},{y - 5:.1f}l5,9h-10z",
        3: f"M{x:.1f},{y - 5:.1f}l5,5l-5,5l-5,-5z",
        4: f"M{x:.1f},{y + 5:.1f}l5,-9h-10z",
    }
    kind = place % MARKS
    if kind not in shapes:
        return svg.dot(x, y, class_, tip, 4)
    return svg.element("path", *svg.tip_of(tip), d=shapes[kind], class_=class_)


def labels(rows: list[StageRow], x: float, up: svg.Scale) -> list[Markup]:
    """Return the names at the ends of the lines, moved apart where they would touch."""
    ends = sorted((up(curve(row)[-1][1]), row.stage) for row in rows if curve(row))
    drawn, lowest = [], -math.inf
    for y, stage in ends:
        lowest = max(y + 4, lowest + LABEL_PX)
        drawn.append(
            svg.text(
                x, lowest, svg.short("end-to-end" if stage == REQUEST else stage, 18), f"{stage_class(stage)} name"
            )
        )
    return drawn
