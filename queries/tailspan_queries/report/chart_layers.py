"""The heat map of the model: device time of each kind of part in each layer.

In: the rows of one model of a `LayerReport` by part. Out: `Markup`.
A shade is the mean time in a step as a part of the longest, in `SHADES` steps; parts that take much longer than in the
median layer are framed and say by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from tailspan_queries import units
from tailspan_queries.layers import LayerRow, part_name
from tailspan_queries.report import svg

SHADES = 9
ROW_PX = {svg.WIDE: 34, svg.NARROW: 26}
LEFT = {svg.WIDE: 100, svg.NARROW: 74}
WRITTEN_PX = 40
"""Width of a cell from which on it says how slow it is."""
MOST_KINDS, MOST_LAYERS = 6, 128


def heat_map(rows: Sequence[LayerRow], slow: Sequence[LayerRow], key: str, width: float) -> Markup:
    """Return the map of one model: a line for each kind, a column for each layer."""
    kinds = list(dict.fromkeys(row.kind for row in rows))[:MOST_KINDS]
    layers = sorted({row.layer for row in rows if row.layer is not None})[:MOST_LAYERS]
    cells = {(row.kind, row.layer): row for row in rows}
    height, left = ROW_PX[int(width)], LEFT[int(width)]
    across = svg.linear(0, len(layers), left, width - 2)
    times = [row.mean_ns for row in rows if row.mean_ns > 0]
    low, high = (min(times), max(times)) if times else (0.0, 0.0)
    drawn: list[Markup] = []
    for line, kind in enumerate(kinds):
        y = line * height
        drawn.append(svg.text(left - 8, y + height / 2 + 4, svg.short(kind, 11), "tick", "end"))
        for place, layer in enumerate(layers):
            if row := cells.get((kind, layer)):
                box = svg.Frame(across(place), y, across(place + 1), y + height)
                drawn.append(cell(row, box, row in slow, high, tips=width == svg.WIDE))
    bottom = len(kinds) * height
    every = math.ceil(len(layers) / (24 if width == svg.WIDE else 8))
    for place, layer in list(enumerate(layers))[::every]:
        drawn.append(svg.text(across(place + 0.5), bottom + 16, str(layer), "tick", "middle"))
    drawn += legend(left, bottom + 30, high)
    said = f"{len(layers)} layers; from {units.duration(low)} to {units.duration(high)} in a step"
    return svg.picture(width, bottom + 52, "Device time of the parts of the model", said, key, *drawn)


def cell(row: LayerRow, box: svg.Frame, slow: bool, high: float, *, tips: bool) -> Markup:
    """Return one cell; a phone has no pointer, so that its cells go without tips."""
    name = part_name("part", row.layer, row.kind)
    tip = f"{name}: mean {units.duration(row.mean_ns)}, p99 {units.duration(row.p99_ns)}"
    if row.deviation_ratio is not None:
        tip += f", {units.percent(row.deviation_ratio)} against the median layer"
    gap = 2 if box.width > 8 else 0.5
    step = shade(row.mean_ns, high)
    style = f"h{step}{' slow' if slow else ''}"
    drawn = svg.rect(
        box.left + gap / 2, box.top + 1, box.width - gap, box.bottom - box.top - 2, style, tip if tips else "", 2
    )
    if not slow or box.width < WRITTEN_PX:
        return drawn
    ink = "high" if step >= SHADES / 2 else "low"
    middle = (box.left + box.right) / 2, (box.top + box.bottom) / 2 + 4
    return svg.element(
        "g", drawn, svg.text(*middle, f"+{units.percent(row.deviation_ratio, 0)}", f"{ink} strong", "middle")
    )


def shade(value: float, high: float) -> int:
    """Return which shade a time has, 0 for the shortest."""
    return min(int(value / high * SHADES), SHADES - 1) if value > 0 and high > 0 else 0


def legend(left: float, top: float, high: float) -> list[Markup]:
    """Return the shades with the times of both ends."""
    begin = left + 16
    drawn = [svg.rect(begin + step * 16, top, 15, 14, f"h{step}") for step in range(SHADES)]
    ends = ((left, "0"), (begin + SHADES * 16 + 6, units.duration(high)))
    return [*drawn, *(svg.text(x, top + 11, words, "tick") for x, words in ends)]
