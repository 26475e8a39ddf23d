"""What a comparison means, in sentences: findings that must not be missed, and cautions before trusting it."""

from __future__ import annotations

from tailspan_queries import units
from tailspan_queries.compare_records import REQUEST, TTFT, Comparison, Line
from tailspan_queries.stats_blocks import LEAST_BLOCKS
from tailspan_queries.stats_strata import Strata
from tailspan_queries.units import signed

NAMES = {REQUEST: "end-to-end", TTFT: "TTFT"}
TAIL = ("p99", "p95")
RATE_CHANGE = 0.2
"""Arrival rates that differ by more change the queue whatever else changed."""
MIX_MOVED = 0.02
"""A mix that moved end-to-end latency by less is not told."""
AGAINST = 0.01
"""A stage that moved against the end-to-end time is told from this share of that time on."""
ERRORS = 0.01
UNCOVERED = 0.1
PRESENCE = 0.02


def title(part: str) -> str:
    """Return a part's name in a sentence."""
    return NAMES.get(part, part)


def findings(report: Comparison) -> tuple[str, ...]:
    """Return the sentences: what end-to-end did, tails that got worse behind a better median, stages that went back."""
    overall = [summary(report)]
    tails = [text for part in report.part_names if (text := worse_tail(report, part))]
    return tuple(filter(None, [*overall, *tails, *against(report)]))


def summary(report: Comparison) -> str:
    """Say what the end-to-end time did at the median and at p99."""
    parts = []
    for statistic in ("p50", "p99"):
        line = report.line(REQUEST, statistic)
        if line is not None:
            parts.append(f"{statistic} {verdict(line)}")
    return f"end-to-end: {', '.join(parts)}." if parts else ""


def verdict(line: Line) -> str:
    """Return a verdict with its size."""
    if line.too_few:
        return "unknown (too few requests)"
    return f"{line.verdict} ({signed(line.change_ratio)})"


def worse_tail(report: Comparison, part: str) -> str:
    """Say it if the median of a part improved and its tail got worse."""
    median = report.line(part, "p50")
    if median is None or median.verdict != "better":
        return ""
    worse = [line for name in TAIL if (line := report.line(part, name)) and line.verdict == "worse"]
    if not worse:
        return ""
    return (
        f"THE MEDIAN IMPROVED AND THE TAIL GOT WORSE: {title(part)} p50 {signed(median.change_ratio)}, "
        f"{worse[0].statistic} {signed(worse[0].change_ratio)} ({units.duration(worse[0].adjusted_ns)} → "
        f"{units.duration(worse[0].after_ns)})"
    )


def against(report: Comparison) -> list[str]:
    """Name the stages that moved against the end-to-end time, at the mean and at p99."""
    found = []
    for statistic in ("mean", "p99"):
        whole = report.line(REQUEST, statistic)
        if whole is None or whole.verdict == "unclear":
            continue
        opposite = "worse" if whole.verdict == "better" else "better"
        for part in report.part_names:
            line = report.line(part, statistic)
            if part in NAMES or line is None or line.verdict != opposite or line.change_ns is None:
                continue
            share = whole.ratio(abs(line.change_ns))
            if share is not None and share >= AGAINST:
                found.append(
                    f"{part} {statistic} got {opposite} ({signed(line.change_ratio)}) "
                    f"while end-to-end {statistic} got {whole.verdict} ({signed(whole.change_ratio)})"
                )
    return found


def cautions(report: Comparison, strata: Strata) -> tuple[str, ...]:
    """Return what a reader must know before trusting the numbers."""
    return tuple(
        filter(
            None,
            [
                mix(report),
                uncovered(strata),
                few(report),
                blocks(report),
                rates(report),
                errors(report),
                sampled(report),
            ],
        )
    ) + tuple(presence(report))


def mix(report: Comparison) -> str:
    """Say by how much the changed lengths alone moved the end-to-end time, where that is more than chance."""
    moved = [effect for effect in report.mix if effect.statistic in ("p50", "p99")]
    if not any(effect.certain and abs(effect.ratio) >= MIX_MOVED for effect in moved):
        return ""
    told = ", ".join(
        f"{effect.statistic} by {signed(effect.ratio)}{'' if effect.certain else ' (unclear)'}" for effect in moved
    )
    return f"other prompt and output lengths alone moved end-to-end {told}; changes are told without that"


def uncovered(strata: Strata) -> str:
    """Say it if the later requests have lengths that the earlier ones never had."""
    if strata.uncovered_ratio <= UNCOVERED:
        return ""
    return (
        f"{units.percent_text(strata.uncovered_ratio)} of the later requests have lengths that no earlier one has: "
        "the adjustment for the mix is incomplete"
    )


def few(report: Comparison) -> str:
    """Say which percentiles of the end-to-end time rest on too few requests."""
    weak = [line.statistic for line in report.lines if line.part == REQUEST and line.too_few]
    if not weak:
        return ""
    least = min(report.before.size, report.after.size)
    return (
        f"only {least:,} request{'' if least == 1 else 's'} on a side: too few for {', '.join(weak)} "
        "(10 beyond a percentile, 30 for a mean; fewer count after weighting)"
    )


def blocks(report: Comparison) -> str:
    """Say it if there are no intervals because the requests lie in too few blocks of time."""
    used = min(len(set(sample.blocks.tolist())) for sample in (report.before, report.after))
    if used >= LEAST_BLOCKS:
        return ""
    return f"requests in only {used} blocks of time on a side: no intervals (at least {LEAST_BLOCKS} needed)"


def rates(report: Comparison) -> str:
    """Say it if the arrival rates differ so much that this alone can explain a change."""
    before, after = report.before.rate, report.after.rate
    if abs(after / before - 1) <= RATE_CHANGE:
        return ""
    return (
        f"arrival rate {units.significant(before)}/s → {units.significant(after)}/s "
        f"({signed(after / before - 1)}): load alone can explain changes, of queue above all"
    )


def errors(report: Comparison) -> str:
    """Say it if another share of requests failed: what fails early is fast."""
    before, after = report.before.error_ratio, report.after.error_ratio
    if abs(after - before) < ERRORS:
        return ""
    return f"errors {units.percent(before)} → {units.percent(after)} of requests: requests that fail early look fast"


def sampled(report: Comparison) -> str:
    """Say which part of the requests was read if not all."""
    sides = (report.before, report.after)
    if all(side.kept_ratio == 1 for side in sides):
        return ""
    parts = dict.fromkeys(f"{100 * side.kept_ratio:.2g} %" for side in sides)
    told = " and ".join(f"{side.size:,} of about {side.requests:,.0f}" for side in sides)
    return f"read {told} requests: {' and '.join(parts)} of the traces (--exact reads all)"


def presence(report: Comparison) -> list[str]:
    """Name the stages that another share of requests goes through."""
    found = []
    for part in report.part_names:
        line = report.line(part, "mean")
        if part in NAMES or line is None:
            continue
        before, after = line.before_count / report.before.size, line.after_count / report.after.size
        if abs(after - before) >= PRESENCE:
            found.append(f"{part}: in {units.percent(before)} of requests before, {units.percent(after)} after")
    return found
