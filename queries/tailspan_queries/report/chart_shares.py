"""Stacked bars: what the mean request and the slowest ones spend their time on.

In: a `TailReport`. Out: `Markup`. A bar is 100 %; a stage that takes less than nothing (overlaps) is not drawn.
"""

from __future__ import annotations

from markupsafe import Markup

from tailspan_queries import units
from tailspan_queries.diagnosis import quantile_name
from tailspan_queries.records import REQUEST
from tailspan_queries.report import svg
from tailspan_queries.report.palette import stage_class
from tailspan_queries.tail import EVERYTHING, TailReport, TailStage

BAR_HEIGHT = 46
LEAST_PX = 0.4
"""Narrower parts are not drawn; the table has them."""
LABELLED_PX = {svg.WIDE: 74, svg.NARROW: 46}
"""Width from which on a part has its share written in it."""


def shares(report: TailReport, width: float) -> Markup:
    """Return a bar for the mean and one for the tail."""
    whole = report.whole(EVERYTHING)
    parts = [row for row in report.rows if row.stage != REQUEST]
    name = quantile_name(report.quantile)
    bars = (
        (f"all requests: {units.duration(whole.mean_ns)} on average", [row.share_ratio for row in parts]),
        (f"beyond {name}: {units.duration(whole.tail_mean_ns)} on average", [row.tail_share_ratio for row in parts]),
    )
    drawn: list[Markup] = []
    top = 0.0
    for title, ratios in bars:
        drawn.append(svg.text(0, top + 16, title, "strong"))
        drawn += stack(parts, ratios, top + 26, width)
        top += 26 + BAR_HEIGHT + 18
    description = "; ".join(f"{title}: {in_words(parts, ratios)}" for title, ratios in bars)
    return svg.picture(width, top - 12, "Shares of the stages in mean and tail", description, "shares", *drawn)


def stack(parts: list[TailStage], ratios: list[float], top: float, width: float) -> list[Markup]:
    """Return one bar, its parts in the order of the stages."""
    total = sum(max(ratio, 0.0) for ratio in ratios) or 1.0
    drawn: list[Markup] = []
    left = 0.0
    for row, ratio in zip(parts, ratios, strict=True):
        size = max(ratio, 0.0) / total * width
        tip = f"{row.stage}: {units.percent(ratio)}"
        if size >= LEAST_PX:
            drawn.append(svg.rect(left, top, max(size - 1.5, 0.5), BAR_HEIGHT, f"{stage_class(row.stage)} fill", tip))
        if size >= LABELLED_PX[int(width)]:
            style = f"{stage_class(row.stage)} on"
            drawn.append(svg.text(left + 8, top + 20, svg.short(row.stage, int(size / 8)), f"{style} small"))
            drawn.append(svg.text(left + 8, top + 37, units.percent(ratio, 0), f"{style} strong"))
        left += size
    return drawn


def in_words(parts: list[TailStage], ratios: list[float]) -> str:
    """Return a bar as text, the largest part first."""
    ranked = sorted(zip(parts, ratios, strict=True), key=lambda pair: -pair[1])
    return ", ".join(f"{row.stage} {units.percent(ratio)}" for row, ratio in ranked[:8])
