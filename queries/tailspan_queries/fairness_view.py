"""The fairness report for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `baseline`, `filters`, `by`, `times`, `read_ratio` (part of the traces that was read, 1 for
all), `everyone` {every column of query `fairness`, `p50_change_ratio`, `p99_change_ratio`, `rise_p_value`} or null,
`classes` [the same], `starved` [keys], `risen` [keys], `median_fell`, `longest` [{every column of query
`longest_waits`}], `diagnosis`, `warnings`, `cautions`.
CSV: a line for everyone and for each class, without the blocks.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import UNKNOWN, headline, new_table, plural
from tailspan_queries.console import PLAIN_WIDTH
from tailspan_queries.fairness import FEW, FairnessReport, LongWait, WaitClass
from tailspan_queries.times import clock, datetime_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERYONE = "everyone"
SHORT_ID = 12
CHANGES = ("p50_change_ratio", "p99_change_ratio", "rise_p_value")


def render_fairness(report: FairnessReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the waits as a table, the longest ones, and under them diagnosis, warnings and cautions."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(headline(amount(report), report.window, report.filters), style="bold"),
        Text(subtitle(report), style="dim"),
        Text(),
        classes_table(report),
    ]
    if report.longest:
        parts += [Text(), longest_table(report, width)]
    parts += [Text(), Text(diagnose(report), style="bold")]
    parts += [Text(f"! {line}", style="bold red") for line in warnings(report)]
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(report)))


def amount(report: FairnessReport) -> str:
    """Say how many requests queued."""
    if report.everyone is None:
        return "no request queued"
    read, all_ = report.everyone.kept_requests, report.everyone.requests
    return f"{read:,} requests read of about {all_:,}" if read < all_ else f"{plural(all_, 'request')} queued"


def subtitle(report: FairnessReport) -> str:
    """Say what is long, and what the change is against."""
    long_ns = report.everyone.long_wait_ns if report.everyone else 0.0
    before = f"{clock(report.baseline.since_ns)} to {clock(report.baseline.until_ns)} UTC"
    against = "from the first half of the window to the second" if report.halves else f"against {before}"
    return f"long: a wait above {units.duration(long_ns)}, {report.times:g} times the median; change {against}"


def classes_table(report: FairnessReport) -> RenderableType:
    """Return the table: a line for each class, everyone last."""
    from rich.text import Text

    titles = ("requests", "p50", "p90", "p99", "max", "long", "p50 change", "p99 change")
    table = new_table(report.by, *titles)
    starved, risen = report.starved, report.risen
    for row in (*report.classes, *([report.everyone] if report.everyone else [])):
        if row.everyone:
            table.add_section()
        name = Text(EVERYONE if row.everyone else row.key or UNKNOWN)
        long_style = "bold red" if row in starved else ""
        rise_style = "bold red" if row in risen else ""
        table.add_row(
            name,
            units.count(row.requests),
            *(units.duration(value) for value in (row.wait_p50_ns, row.wait_p90_ns, row.wait_p99_ns, row.wait_max_ns)),
            Text(units.percent(row.long_ratio), style=long_style),
            signed(row.p50_change_ratio),
            Text(signed(row.p99_change_ratio), style=rise_style),
            style="bold" if row.everyone else "",
        )
    return table


def longest_table(report: FairnessReport, width: int) -> RenderableType:
    """Return the longest waits."""
    table = new_table("longest waits", "began (UTC)", "waited", "of e2e")
    table.add_column(report.by, overflow="fold")
    if report.by != "instance":
        table.add_column("instance", overflow="fold")
    for wait in report.longest:
        cells = [
            wait.trace_id if width >= PLAIN_WIDTH else wait.trace_id[:SHORT_ID],
            clock(datetime_ns(wait.start))[5:],
            units.duration(wait.wait_ns),
            units.percent(units.part(wait.wait_ns, wait.e2e_ns), 0) if wait.e2e_ns else units.ABSENT,
            wait.key or UNKNOWN,
        ]
        table.add_row(*cells, *([] if report.by == "instance" else [wait.instance or UNKNOWN]))
    return table


def signed(ratio: float | None) -> str:
    """Return a change with its sign; from twice as much on, how many times as much it is."""
    return f"{units.significant(1 + ratio)} x" if ratio is not None and ratio >= 1 else units.signed(ratio)


def diagnose(report: FairnessReport) -> str:
    """Return one sentence: who starves, or that nobody does."""
    if report.everyone is None:
        return ""
    if report.starved:
        worst = report.starved[0]
        return (
            f"{report.by} {worst.key or UNKNOWN} starves: {units.percent_text(worst.long_ratio)} of its requests wait "
            f"more than {report.times:g} times the median of everyone, of whom "
            f"{units.percent_text(report.everyone.long_ratio, 1)} do; its p99 is {units.duration(worst.wait_p99_ns)} "
            f"against {units.duration(report.everyone.wait_p50_ns)} at the median of everyone."
        )
    longest = max(report.classes, key=lambda row: row.wait_p99_ns)
    return (
        f"nobody starves: {units.percent_text(report.everyone.long_ratio, 1)} of requests wait more than "
        f"{report.times:g} times the median; the longest p99 is {units.duration(longest.wait_p99_ns)}, of {report.by} "
        f"{longest.key or UNKNOWN}."
    )


def warnings(report: FairnessReport) -> list[str]:
    """Return a loud line for each class whose tail rose, louder if the median of everyone fell meanwhile."""
    found = []
    for row in report.risen:
        line = (
            f"{report.by} {row.key or UNKNOWN}: p99 of the queue rose from {units.duration(row.before_p99_ns)} to "
            f"{units.duration(row.after_p99_ns)} ({signed(row.p99_change_ratio)})"
        )
        if report.median_fell and report.everyone is not None:
            line += (
                f" WHILE THE MEDIAN OF EVERYONE FELL from {units.duration(report.everyone.before_p50_ns)} to "
                f"{units.duration(report.everyone.after_p50_ns)}: it pays for the others"
            )
        found.append(line)
    return found


def cautions(report: FairnessReport) -> list[str]:
    """Return what a reader must know before acting on the table."""
    found = []
    few = [row.key or UNKNOWN for row in report.classes if min(row.before_requests, row.after_requests) < FEW]
    if few and report.everyone is not None:
        found.append(f"too few requests in a period to judge the change of {', '.join(few)} (at least {FEW} needed)")
    if len(report.classes) == 1 and not report.classes[0].key:
        found.append(f"no request has an attribute {report.by}")
    elif len(report.classes) == 1:
        found.append(f"all requests have the same {report.by}, {report.classes[0].key}")
    if not report.sample.whole:
        found.append(f"read {report.sample.text} (--exact reads all); counts are scaled up, longest waits are of all")
    return found


def as_record(row: WaitClass) -> dict[str, Any]:
    """Return a row with what is computed of it."""
    return {**asdict(row), **{name: getattr(row, name) for name in CHANGES}}


def fairness_json(report: FairnessReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "baseline": report.baseline.as_json(),
        "filters": report.filters.parameters,
        "by": report.by,
        "times": report.times,
        "read_ratio": report.sample.ratio,
        "everyone": as_record(report.everyone) if report.everyone else None,
        "classes": [as_record(row) for row in report.classes],
        "starved": [row.key for row in report.starved],
        "risen": [row.key for row in report.risen],
        "median_fell": report.median_fell,
        "longest": [asdict(wait) for wait in report.longest],
        "diagnosis": diagnose(report),
        "warnings": warnings(report),
        "cautions": cautions(report),
    }


def fairness_csv(report: FairnessReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    rows = [as_record(row) for row in (*([report.everyone] if report.everyone else []), *report.classes)]
    names = [name for name in (*WaitClass.__slots__, *CHANGES) if not name.endswith("_beyond")]
    return names, [[row[name] for name in names] for row in rows]


__all__ = ["LongWait", "fairness_csv", "fairness_json", "render_fairness"]
