"""The report about what is different, for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `slowest`, `threshold_ns`, `requests`, `kept_requests`, `kept_slow`,
`read_ratio` (part of the traces, 1 for all), `candidates`, `least_slow`, `false_discoveries`, `findings` [{attribute,
relation, value, requests, slow_requests, kept_requests, kept_slow, share_ratio, slow_share_ratio, times, times_low,
p_value, q_value, vanish_ratio, stage, stage_extra_ns, slow_share_margin_ratio or null, overlap {kind, other,
common_ratio} or null}], `diagnosis`, `cautions`. CSV: a line a finding. Where a part was read, `kept_…` are what was
read and other counts scaled up.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import headline, new_table, plural, requests_read
from tailspan_queries.console import STAGE_STYLES
from tailspan_queries.diagnosis import ADVICE, UNKNOWN_ADVICE
from tailspan_queries.different import FALSE_DISCOVERIES, FEWEST, LEAST_SLOW, READ_LIMIT, DifferentReport, Finding

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUP_NAMES = ("attribute", "relation", "value", "requests", "slow_requests", "kept_requests", "kept_slow")
SCALED_NAMES = ("requests", "slow_requests")
FINDING_NAMES = (
    "share_ratio",
    "slow_share_ratio",
    "times",
    "times_low",
    "p_value",
    "q_value",
    "vanish_ratio",
    "stage",
    "stage_extra_ns",
    "slow_share_margin_ratio",
)
OVERLAP_NAMES = ("overlap_kind", "overlap_other", "overlap_common_ratio")


def render_different(report: DifferentReport, limit: int = 10) -> RenderableType:
    """Return the findings as a table, with diagnosis and cautions under them."""
    from rich.console import Group
    from rich.text import Text

    read = requests_read(report.kept_requests, report.requests, sampled=not report.sample.whole)
    parts: list[RenderableType] = [
        Text(headline(read, report.window, report.filters), style="bold"),
        Text(
            f"slow: the slowest {percent_of(report.slowest)}, {plural(report.kept_slow, 'request')} of "
            f"{units.duration(report.threshold_ns)} or more; {plural(report.candidates, 'group')} tested\n"
            "likelier: to be slow than the others; vanish: so many slow ones, were it as fast as the others",
            style="dim",
        ),
    ]
    if report.findings:
        parts += [Text(), findings_table(report, limit)]
    parts += [Text(), Text(diagnose(report), style="bold")]
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(report, limit)))


def findings_table(report: DifferentReport, limit: int) -> RenderableType:
    """Return the table of findings; a note under a group says with which other it shares its requests."""
    from rich.text import Text

    table = new_table("group", "of slow", "of all", "likelier", "at least", "vanish")
    table.add_column("slow in", no_wrap=True)
    table.add_column("by", justify="right", no_wrap=True)
    for finding in report.findings[:limit]:
        name = Text(finding.name, style="bold")
        if note := overlap_note(finding):
            name.append(f"\n{note}", style="dim")
        table.add_row(
            name,
            units.percent(finding.slow_share_ratio, 0),
            units.percent(finding.share_ratio),
            f"{units.significant(finding.times)} x",
            f"{units.significant(finding.times_low)} x",
            units.percent(finding.vanish_ratio, 0),
            Text(finding.stage, style=STAGE_STYLES.get(finding.stage, "white")),
            units.duration(finding.stage_extra_ns),
        )
    return table


def overlap_note(finding: Finding) -> str:
    """Say that a finding shares its slow requests with one above it."""
    overlap = finding.overlap
    if overlap is None:
        return ""
    common = units.percent_text(overlap.common_ratio)
    return {
        "same": f"the same requests as {overlap.other}",
        "explained": f"nothing beyond {overlap.other}, which has {common} of its slow ones",
        "partly": f"beyond {overlap.other}, which has {common} of its slow ones",
    }[overlap.kind]


def percent_of(ratio: float) -> str:
    """Return `1 %` for 0.01."""
    return f"{ratio * 100:.4g} %"


def diagnose(report: DifferentReport) -> str:
    """Return one sentence about the first finding, or that there is none."""
    if report.kept_requests < FEWEST:
        return f"only {plural(report.kept_requests, 'request')}: too few to say what is different (at least {FEWEST})."
    if report.kept_slow == report.kept_requests:
        return "all requests took equally long: none is slow."
    if not report.findings:
        return (
            f"nothing is different about the slowest {percent_of(report.slowest)}: none of "
            f"{plural(report.candidates, 'group')} is over-represented beyond chance."
        )
    first = report.findings[0]
    sentence = (
        f"{first.name} is {units.percent_text(first.slow_share_ratio)} of the slowest {percent_of(report.slowest)} but "
        f"{units.percent_text(first.share_ratio)} of requests; as fast as the others, it would take "
        f"{units.percent_text(first.vanish_ratio)} of the slow ones away"
    )
    if not first.stage:
        return f"{sentence}."
    return (
        f"{sentence}. Its slow requests take {units.duration(first.stage_extra_ns)} longer in {first.stage}: "
        f"{ADVICE.get(first.stage, UNKNOWN_ADVICE)}."
    )


def cautions(report: DifferentReport, limit: int) -> list[str]:
    """Return what a reader must know before acting on the table."""
    found = []
    if report.findings:
        found.append(
            f"groups with at least {LEAST_SLOW} slow requests, of which {percent_of(FALSE_DISCOVERIES)} may be chance "
            "(Benjamini-Hochberg); what goes together with slow need not be its cause"
        )
    if len(report.findings) > limit:
        found.append(f"{len(report.findings) - limit} more: -n {len(report.findings)} lists them")
    return found if report.sample.whole else [*found, *sample_cautions(report)]


def sample_cautions(report: DifferentReport) -> list[str]:
    """Return what a sample does to the numbers, and what it leaves out."""
    read = f"read: {report.sample.text} (--exact reads all); counts are scaled up"
    margins = [finding.slow_share_margin_ratio or 0.0 for finding in report.findings]
    if margins:
        slow = f"all requests of {units.duration(report.threshold_ns)} or more"
        read += f", shares of slow within {100 * max(margins):.2g} % of those of {slow}, 19 times in 20"
    return [
        read,
        f"no group is of `batch`: steps are in no sample; a window of up to {READ_LIMIT:,} requests has it, or --exact",
    ]


def as_record(finding: Finding, read_ratio: float) -> dict[str, Any]:
    """Return a finding as the module says."""
    group = {name: getattr(finding.group, name) for name in GROUP_NAMES}
    group |= {name: group[name] / read_ratio for name in SCALED_NAMES}
    overlap = asdict(finding.overlap) if finding.overlap else None
    return {**group, **{name: getattr(finding, name) for name in FINDING_NAMES}, "overlap": overlap}


def different_json(report: DifferentReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "slowest": report.slowest,
        "threshold_ns": report.threshold_ns,
        "requests": report.requests,
        "kept_requests": report.kept_requests,
        "kept_slow": report.kept_slow,
        "read_ratio": report.sample.ratio,
        "candidates": report.candidates,
        "least_slow": LEAST_SLOW,
        "false_discoveries": FALSE_DISCOVERIES,
        "findings": [as_record(finding, report.sample.ratio) for finding in report.findings],
        "diagnosis": diagnose(report),
        "cautions": cautions(report, len(report.findings)),
    }


def different_csv(report: DifferentReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    lines = []
    for finding in report.findings:
        record = as_record(finding, report.sample.ratio)
        overlap = record.pop("overlap") or {}
        lines.append([*record.values(), *(overlap.get(name.removeprefix("overlap_")) for name in OVERLAP_NAMES)])
    return [*GROUP_NAMES, *FINDING_NAMES, *OVERLAP_NAMES], lines
