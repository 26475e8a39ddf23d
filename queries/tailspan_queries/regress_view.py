"""What regressed, for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `baseline` [windows], `filters`, `threshold_ratio`, `requests`, `baseline_requests`, `findings`
[{the columns of a line of `compare`, p_holm, regressed, improved, since}], `alarms` [sentences], `cautions`. CSV: the
findings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import new_table
from tailspan_queries.compare_findings import title
from tailspan_queries.compare_records import Line
from tailspan_queries.compare_view import COLUMNS, FEW, describe, line_values
from tailspan_queries.regress import Finding, Regression
from tailspan_queries.times import clock, iso
from tailspan_queries.units import signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MORE = ("p_holm", "regressed", "improved", "since")


def render_regression(report: Regression) -> RenderableType:
    """Return the findings as a table with the alarms under it."""
    from rich.console import Group
    from rich.text import Text

    comparison = report.comparison
    told = alarms(report)
    return Group(
        Text(f"baseline  {describe(comparison.before)}", style="bold"),
        Text(f"window    {describe(comparison.after)}", style="bold"),
        Text(),
        regression_table(report),
        Text(),
        *(Text(line, style="bold red") for line in told),
        *([] if told else [Text(nothing(report), style="bold")]),
        *(Text(f"! {line}", style="yellow") for line in comparison.cautions),
    )


def regression_table(report: Regression) -> Table:
    """Return a line for each statistic that was looked at."""
    table = new_table("", "", "baseline", "window", "change", "95 % interval", "p (Holm)", "")
    for found in report.findings:
        line = found.line
        if not line.adjusted_ns and not line.after_ns:
            continue
        table.add_row(
            title(line.part),
            line.statistic,
            units.duration(line.adjusted_ns),
            units.duration(line.after_ns),
            signed(line.change_ratio),
            interval(line),
            chance(found.p_holm),
            verdict(found),
        )
    return table


def interval(line: Line) -> str:
    """Return the interval of a change as shares."""
    if line.low_ns is None or line.high_ns is None or line.ratio(line.low_ns) is None:
        return units.ABSENT
    return f"{signed(line.ratio(line.low_ns))} to {signed(line.ratio(line.high_ns))}"


def chance(p_value: float | None) -> str:
    """Return a p-value with three decimals."""
    if p_value is None:
        return units.ABSENT
    return "<0.001" if p_value < 0.0005 else f"{p_value:.3f}"


def verdict(found: Finding) -> str:
    """Return what became of one statistic."""
    if found.line.too_few:
        return FEW
    return "REGRESSED" if found.regressed else "improved" if found.improved else ""


def alarms(report: Regression) -> list[str]:
    """Return a sentence for each statistic that regressed."""
    since_ns = report.comparison.after.group.windows[0].since_ns
    sentences = []
    for found in report.regressed:
        line = found.line
        since = f"since {clock(found.since_ns)} UTC" if found.since_ns else f"since {clock(since_ns)} UTC or earlier"
        sentences.append(
            f"{title(line.part)} {line.statistic} regressed by {signed(line.change_ratio)} "
            f"({units.duration(line.adjusted_ns)} → {units.duration(line.after_ns)}) {since}"
        )
    return sentences


def nothing(report: Regression) -> str:
    """Say that there is no alarm, and why if nothing could be told."""
    if all(found.p_holm is None for found in report.findings):
        return "too few requests to tell a regression from chance: widen the window"
    return f"nothing regressed by more than {units.percent_text(report.threshold)}"


def regression_json(report: Regression) -> dict[str, Any]:
    """Return the report as the module says."""
    before, after = report.comparison.before, report.comparison.after
    return {
        "window": after.group.windows[0].as_json(),
        "baseline": [window.as_json() for window in before.group.windows],
        "filters": after.group.filters.parameters,
        "threshold_ratio": report.threshold,
        "requests": round(after.requests),
        "baseline_requests": round(before.requests),
        "findings": [finding_values(found) for found in report.findings],
        "alarms": alarms(report),
        "cautions": list(report.comparison.cautions),
    }


def finding_values(found: Finding) -> dict[str, Any]:
    """Return one finding by the names of its columns."""
    since = iso(found.since_ns) if found.since_ns else None
    more = (found.p_holm, found.regressed, found.improved, since)
    return {**line_values(found.line), **dict(zip(MORE, more, strict=True))}


def regression_csv(report: Regression) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    return [*COLUMNS, *MORE], [list(finding_values(found).values()) for found in report.findings]
