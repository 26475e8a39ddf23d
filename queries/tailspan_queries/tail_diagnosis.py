"""One sentence about what the tail is made of that the mean is not, and what to be careful about.

In: a `TailReport`. Out: text. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailspan import attributes
from tailspan_queries import units
from tailspan_queries.breakdown import plural
from tailspan_queries.diagnosis import ADVICE, UNATTRIBUTED_LIMIT, UNKNOWN_ADVICE, quantile_name
from tailspan_queries.records import REQUEST

if TYPE_CHECKING:
    from tailspan_queries.tail import TailReport, TailStage

CONTRAST = 0.1
"""A stage whose share of the tail is this much above that of the mean is what the tail has that the mean has not."""
OVERLAP = 0.005
"""Stages whose shares of the critical path differ by this much from those of their times overlap."""
FEW_IN_TAIL = 10


def diagnose(report: TailReport) -> str:
    """Return the sentence, over several keys about the one whose tail takes longest; empty without requests."""
    if not report.rows:
        return ""
    key = max(report.keys, key=lambda name: report.whole(name).tail_mean_ns)
    parts = [row for row in report.of(key) if row.stage != REQUEST]
    whole = report.whole(key)
    if not parts or whole.tail_mean_ns <= 0:
        return ""
    shares = compared(parts, overlap=report.overlapping)
    largest = max(shares, key=lambda stage: shares[stage][0])
    grown = max(shares, key=lambda stage: shares[stage][0] - shares[stage][1])
    name = quantile_name(report.quantile)
    subject = "" if report.by == "all" else f"of {report.by} {report.label(key)}, whose tail is the longest: "
    tail_share, share = shares[grown]
    if tail_share - share < CONTRAST:
        tail_share, share = shares[largest]
        return (
            f"{subject}the tail is made of the same as the mean: {largest} is {units.percent_text(tail_share)} of what "
            f"lies beyond {name} and {units.percent_text(share)} of the mean: {ADVICE.get(largest, UNKNOWN_ADVICE)}."
        )
    verb = f"the tail is made of {grown}" if grown == largest else f"{grown} grows towards the tail"
    sentence = (
        f"{subject}{verb}: {units.percent_text(tail_share)} of what lies beyond {name} "
        f"({units.duration(tail_share * whole.tail_mean_ns)} of {units.duration(whole.tail_mean_ns)}) but "
        f"{units.percent_text(share)} of the mean"
    )
    if largest != grown and shares[largest][1] == max(of_mean for _, of_mean in shares.values()):
        sentence += f"; {largest} is the largest part of both"
    return f"{sentence}: {ADVICE.get(grown, UNKNOWN_ADVICE)}."


def compared(parts: Sequence[TailStage], *, overlap: bool) -> dict[str, tuple[float, float]]:
    """Return of each stage its shares of tail and mean.

    Where stages overlap, their times count some moments twice; those of the critical path do not.
    """
    if overlap:
        return {row.stage: (row.tail_path_ratio, row.path_ratio) for row in parts}
    return {row.stage: (row.tail_share_ratio, row.share_ratio) for row in parts}


def overlapping(rows: Sequence[TailStage]) -> bool:
    """Whether stages overlap or leave the request: then shares of the critical path are not those of the times."""
    return any(
        abs(row.path_ratio - row.share_ratio) > OVERLAP or abs(row.tail_path_ratio - row.tail_share_ratio) > OVERLAP
        for row in rows
        if row.stage != REQUEST
    )


def cautions(report: TailReport) -> tuple[str, ...]:
    """Return what a reader must know before trusting the table, the gravest first."""
    found = []
    for row in report.rows:
        worst = max(*compared([row], overlap=report.overlapping)[row.stage])
        if row.stage == attributes.UNATTRIBUTED and worst > UNATTRIBUTED_LIMIT:
            whose = "" if report.by == "all" else f" of {report.label(row.key)}"
            found.append(
                f"up to {units.percent_text(worst, 1)} of the time{whose} is unattributed: `tailspan doctor` says "
                "which hook is missing"
            )
    if report.overlapping:
        found.append("stages overlap: their shares count some time twice, those of the critical path do not")
    few = [key for key in report.keys if report.whole(key).kept_tail_requests < FEW_IN_TAIL]
    if few:
        smallest = min(report.whole(key).kept_tail_requests for key in few)
        whose = "" if report.by == "all" else f" of {', '.join(map(report.label, few))}"
        found.append(f"the tail{whose} is only {plural(smallest, 'request')} (at least {FEW_IN_TAIL} needed)")
    if not report.sample.whole:
        found.append(f"read: {report.sample.text} (--exact reads all): counts are scaled up, ± holds 19 times in 20")
    return tuple(found)
