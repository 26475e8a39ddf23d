"""The stage report by group and over time for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `by`, `step_seconds` (0 without --over), `method` {name, relative_error, read_ratio},
`requests`, `kept_requests`, `group_count`, `rows` [{bucket, key, rank, stage, count, kept_count, error_count,
share_ratio, wall_ns, busy_ns, gpu_ns}]. `bucket` is the begin in UTC, null without --over; a bucket or a group without
requests has no row. The three times are as in `tailspan stages`. CSV: the same, one column a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import headline, new_table, plural, requests_read
from tailspan_queries.console import PLAIN_WIDTH, STAGE_STYLES
from tailspan_queries.diagnosis import needed, quantile_name
from tailspan_queries.records import QUANTILES, REQUEST, Distribution
from tailspan_queries.stages_by import GroupRow, StagesByReport, largest_stages
from tailspan_queries.stages_view import KIND_TITLES, KINDS, times_json
from tailspan_queries.times import NS_PER_SECOND, iso

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NAMES = ("sum", *QUANTILES, "max")
BAR_WIDTH = 10
WITH_BAR = 100
"""Columns from which on a bar shows each line's p99 against the largest."""


def render_stages_by(
    report: StagesByReport, stages: Sequence[str] = (), kinds: Sequence[str] = ("wall",), width: int = PLAIN_WIDTH
) -> RenderableType:
    """Return a table for each stage and each kind of time; without `stages`, end-to-end and the largest ones.

    Over time without stages it is end-to-end alone, as such tables are long.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(amount(report), style="bold"), Text(subtitle(report), style="dim")]
    for stage in stages or shown_stages(report):
        for kind in kinds:
            rows = [row for row in report.of_stage(stage) if getattr(row, kind) is not None]
            parts += [Text(), Text(title(stage, kind), style=f"bold {STAGE_STYLES.get(stage, '')}".strip())]
            parts.append(stage_table(report, rows, kind, width) if rows else Text("not measured", style="dim"))
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(report)))


def amount(report: StagesByReport) -> str:
    """Say how many requests of which time the report is about."""
    read = requests_read(report.kept_requests, report.requests, sampled=not report.sample.whole)
    return headline(read, report.window, report.filters)


def subtitle(report: StagesByReport) -> str:
    """Say how the percentiles were computed, and what buckets of time are."""
    if not report.grouping.step_seconds:
        return report.method.statement
    return (
        f"{report.method.statement}\ntimes are the begins of buckets of {step_text(report.grouping.step_seconds)}, UTC"
    )


def step_text(seconds: int) -> str:
    """Return the length of a bucket with its unit."""
    for unit_seconds, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % unit_seconds == 0:
            return plural(seconds // unit_seconds, unit)
    return plural(seconds, "second")


def shown_stages(report: StagesByReport) -> tuple[str, ...]:
    """Return the stages that are shown unless the reader names some."""
    return (REQUEST,) if report.grouping.step_seconds else (REQUEST, *largest_stages(report))


def title(stage: str, kind: str) -> str:
    """Name a table."""
    name = "end-to-end" if stage == REQUEST else stage
    return name if kind == "wall" else f"{name}, {KIND_TITLES[kind]}"


def stage_table(report: StagesByReport, rows: Sequence[GroupRow], kind: str, width: int) -> Table:
    """Return the percentiles of one stage, a line for each group or bucket of time."""
    first = "begin (UTC)" if report.grouping.step_seconds else report.grouping.title
    table = new_table(first, "count", *(quantile_name(quantile) for quantile in QUANTILES.values()), "max")
    with_share = kind == "wall" and rows[0].stage != REQUEST
    if with_share:
        table.add_column("share", justify="right", no_wrap=True)
    largest = max(getattr(row, kind).p99_ns for row in rows)
    with_bar = width >= WITH_BAR
    if with_bar:
        table.add_column(" p99", width=BAR_WIDTH + 1, no_wrap=True)
    before: int | None = None
    for row in rows:
        if row.bucket_ns is not None and before is not None:
            add_gap(table, row.bucket_ns - before, report.grouping.step_seconds * NS_PER_SECOND)
        before = row.bucket_ns
        times: Distribution = getattr(row, kind)
        cells = [units.percent(row.share_ratio)] * with_share
        cells += [f" {units.bar(units.part(times.p99_ns, largest), BAR_WIDTH)}"] * with_bar
        table.add_row(report.grouping.line_name(row.key, row.bucket_ns), *numbers(row, times), *cells)
    return table


def add_gap(table: Table, distance_ns: int, step_ns: int) -> None:
    """Say so if buckets without requests lie between two lines."""
    from rich.text import Text

    empty = distance_ns // step_ns - 1
    if empty > 0:
        table.add_row(Text(f"  {empty:,} empty", style="dim"))


def numbers(row: GroupRow, times: Distribution) -> list[Any]:
    """Return count, percentiles and maximum; percentiles that the spans are too few for are dimmed."""
    from rich.text import Text

    found: list[Any] = [units.count(times.count)]
    for name, quantile in QUANTILES.items():
        dim = "dim" if row.kept_count < needed(quantile) else ""
        found.append(Text(units.duration(getattr(times, f"{name}_ns")), style=dim))
    return [*found, units.duration(times.max_ns)]


def cautions(report: StagesByReport) -> list[str]:
    """Return what a reader must know before trusting the table."""
    found = []
    if report.group_count > report.groups:
        left_out = report.group_count - report.groups
        found.append(f"{plural(left_out, 'smaller group')} left out: --groups {report.group_count} lists all")
    kept = [row.kept_count for row in report.of_stage(REQUEST)]
    if small := sum(1 for number in kept if number < needed(0.99)):
        lines = plural(len(kept), "line")
        found.append(f"{small} of {lines} rest on fewer than {needed(0.99)} stored requests: p99 is the slowest")
    return found


def stages_by_json(report: StagesByReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "by": report.grouping.name,
        "step_seconds": report.grouping.step_seconds,
        "method": {
            "name": report.method.name,
            "relative_error": report.method.relative_error,
            "read_ratio": report.sample.ratio,
        },
        "requests": report.requests,
        "kept_requests": report.kept_requests,
        "group_count": report.group_count,
        "rows": [
            {**described(row), **{f"{kind}_ns": times_json(getattr(row, kind)) for kind in KINDS}}
            for row in report.rows
        ],
    }


def described(row: GroupRow) -> dict[str, Any]:
    """Return what a row is about and its counts."""
    return {
        "bucket": None if row.bucket_ns is None else iso(row.bucket_ns),
        "key": row.key,
        "rank": row.rank,
        "stage": row.stage,
        "count": row.count,
        "kept_count": row.kept_count,
        "error_count": row.error_count,
        "share_ratio": row.share_ratio,
    }


def stages_by_csv(report: StagesByReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    header = ["bucket", "key", "rank", "stage", "count", "kept_count", "error_count", "share_ratio"]
    header += [f"{kind}_{name}_ns" for kind in KINDS for name in NAMES]
    lines = []
    for row in report.rows:
        line = list(described(row).values())
        for kind in KINDS:
            times = getattr(row, kind)
            line += [getattr(times, f"{name}_ns") if times else None for name in NAMES]
        lines.append(line)
    return header, lines
