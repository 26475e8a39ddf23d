"""One request as a waterfall: a line for each stage in the order of time, and one for what is too short to see.

In: a `Ledger`. Out: `Markup`. All times are from the begin of the request.
"""

from __future__ import annotations

from markupsafe import Markup

from tailspan import attributes
from tailspan_queries import units
from tailspan_queries.report import svg
from tailspan_queries.report.palette import stage_class
from tailspan_queries.traces import Ledger
from tailspan_queries.waterfall import Interval

ROW_PX = 24
LEFT = {svg.WIDE: 118, svg.NARROW: 92}
RIGHT = 66
Span = tuple[str, Interval]
"""A stage, and begin and end of a span of it."""
SHORT = 0.01
"""Part of a request below which a stage has no line of its own."""
MOST_ROWS, MOST_BARS = 12, 60
"""Stages that have a line, and spans that are drawn in one; `tailspan trace` lists all."""


def waterfall(ledger: Ledger, key: str, width: float) -> Markup:
    """Return the picture of one request."""
    begin, end = ledger.request.interval
    rows = lines(ledger)
    frame = svg.Frame(LEFT[int(width)], 22, width - RIGHT, 22 + ROW_PX * len(rows))
    across = svg.linear(begin, max(end, begin + 1), frame.left, frame.right)
    drawn: list[Markup] = []
    for fraction in (0, 0.25, 0.5, 0.75, 1):
        x = frame.left + fraction * frame.width
        drawn.append(svg.line(x, frame.top - 4, x, frame.bottom, "grid"))
        if width == svg.WIDE or fraction in (0, 0.5, 1):
            words = "0" if not fraction else units.duration((end - begin) * fraction)
            drawn.append(svg.text(x, 13, words, "tick", "middle"))
    for number, (title, (total_ns, spans)) in enumerate(rows.items()):
        y = frame.top + number * ROW_PX
        drawn.append(svg.text(frame.left - 8, y + 16, svg.short(title, 13), "small", "end"))
        drawn += [bar(stage, span, across, y, frame) for stage, span in spans[:MOST_BARS]]
        drawn.append(svg.text(width - RIGHT + 8, y + 16, units.duration(total_ns), "tick"))
    if 0 < ledger.request.ttft_ns <= end - begin:
        x = across(begin + ledger.request.ttft_ns)
        tip = svg.element("title", f"first token after {units.duration(ledger.request.ttft_ns)}")
        drawn.append(svg.element("g", tip, svg.line(x, frame.top - 4, x, frame.bottom, "mark m-first")))
    said = ", ".join(
        f"{stage} {units.duration(total_ns)}" for stage, total_ns in list(ledger.totals_ns.items())[:MOST_ROWS]
    )
    name = f"Request of {units.duration(end - begin)}"
    return svg.picture(width, frame.bottom + 6, name, said, key, *drawn)


def lines(ledger: Ledger) -> dict[str, tuple[int, list[Span]]]:
    """Return of each line its time and its spans; stages too short to see share the last line."""
    found: dict[str, tuple[int, list[Span]]] = {}
    short: dict[str, tuple[int, list[Span]]] = {}
    for stage, total_ns in ledger.totals_ns.items():
        intervals = [span.interval for span in ledger.stages if span.stage == stage]
        intervals = list(ledger.gaps) if stage == attributes.UNATTRIBUTED else intervals
        seen = total_ns >= SHORT * ledger.request.duration_ns and len(found) < MOST_ROWS
        if intervals:
            (found if seen else short)[stage] = (total_ns, [(stage, interval) for interval in intervals])
    if len(short) > 1:
        spans = [span for _, listed in short.values() for span in listed]
        short = {f"{len(short)} others": (sum(total_ns for total_ns, _ in short.values()), spans)}
    return {**found, **short}


def bar(stage: str, span: Interval, across: svg.Scale, y: float, frame: svg.Frame) -> Markup:
    """Return one span, cut to the request."""
    left = min(max(across(span[0]), frame.left), frame.right)
    right = min(max(across(span[1]), frame.left), frame.right)
    tip = f"{stage}: {units.duration(span[1] - span[0])}"
    return svg.rect(left, y + 4, max(right - left, 1.5), ROW_PX - 8, f"{stage_class(stage)} fill", tip, 2)
