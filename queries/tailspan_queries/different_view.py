"""The report about what is different, for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `slowest`, `threshold_ns`, `requests`, `kept_requests`, `kept_slow`, `sample`,
`candidates`, `least_slow`, `false_discoveries`, `findings` [{attribute, relation, value, requests, slow_requests,
kept_requests, kept_slow, share_ratio, slow_share_ratio, times, times_low, p_value, q_value, vanish_ratio, stage,
stage_extra_ns, overlap {kind, other, common_ratio} or null}], `diagnosis`, `cautions`. CSV: a line a finding.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import headline, new_table, plural
from tailspan_queries.console import STAGE_STYLES
from tailspan_queries.diagnosis import ADVICE, UNKNOWN_ADVICE
from tailspan_queries.different import FALSE_DISCOVERIES, FEWEST, LEAST_SLOW, DifferentReport, Finding

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUP_NAMES = ("attribute", "relation", "value", "requests", "slow_requests", "kept_requests", "kept_slow")
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
)
OVERLAP_NAMES = ("overlap_kind", "overlap_other", "overlap_common_ratio")


def render_different(report: DifferentReport, limit: int = 10) -> RenderableType:
    """Return the findings as a table, with diagnosis and cautions under them."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(headline(amount(report), report.window, report.filters), style="bold"),
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


def amount(report: DifferentReport) -> str:
    """Say how many requests were read."""
    if report.kept_requests < report.requests:
        return f"{report.kept_requests:,} requests read of about {report.requests:,}"
    return plural(report.requests, "request")


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
    if report.sample > 1:
        found.append(f"one request in {report.sample:,} was read, chosen by trace id")
    return found


def as_record(finding: Finding) -> dict[str, Any]:
    """Return a finding as the module says."""
    group = {name: getattr(finding.group, name) for name in GROUP_NAMES}
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
        "sample": report.sample,
        "candidates": report.candidates,
        "least_slow": LEAST_SLOW,
        "false_discoveries": FALSE_DISCOVERIES,
        "findings": [as_record(finding) for finding in report.findings],
        "diagnosis": diagnose(report),
        "cautions": cautions(report, len(report.findings)),
    }


def different_csv(report: DifferentReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    lines = []
    for finding in report.findings:
        record = as_record(finding)
        overlap = record.pop("overlap") or {}
        lines.append([*record.values(), *(overlap.get(name.removeprefix("overlap_")) for name in OVERLAP_NAMES)])
    return [*GROUP_NAMES, *FINDING_NAMES, *OVERLAP_NAMES], lines
