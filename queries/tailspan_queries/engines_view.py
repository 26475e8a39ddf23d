"""The engine report for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `by`, `threshold_ns`, `engines` [{every column of query `engine`}], `gaps`
[{every column of query `engine_gaps`}], `diagnosis`. CSV: the columns of query `engine`.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import NARROW, UNKNOWN, headline, new_table, plural
from tailspan_queries.console import PLAIN_WIDTH
from tailspan_queries.engines import EngineReport, EngineRow, Gap, diagnose, followed_by
from tailspan_queries.times import NS_PER_MINUTE, clock, datetime_ns

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

DAY_NS = 24 * 60 * NS_PER_MINUTE


def render_engines(report: EngineReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the report as tables with the diagnosis under them."""
    from rich.console import Group
    from rich.text import Text

    amount = plural(sum(row.step_count for row in report.rows), "step")
    parts: list[RenderableType] = [
        Text(headline(amount, report.window, report.filters), style="bold"),
        Text("busy: in steps; idle: between steps although requests were there; the rest: no requests"),
        Text(),
        engine_table(report, width),
    ]
    if report.gaps:
        parts += [Text(), Text(f"longest gaps of {units.duration(report.threshold_ns)} or more"), gap_table(report)]
    return Group(*parts, Text(), Text(diagnose(report), style="bold"))


def engine_table(report: EngineReport, width: int) -> Table:
    """Return a line for each engine, or for each minute of each."""
    minutes = report.by == "minute"
    several = several_engines(report)
    short = report.window.until_ns - report.window.since_ns <= DAY_NS
    has_device = any(row.device_ratio is not None for row in report.rows)
    threshold = units.duration(report.threshold_ns).replace(".0", "")
    titles = ["steps", "busy", "idle", "gap p50", "p99", "max", f"≥{threshold}", "batch", "wait"]
    titles += ["evict"] if width >= NARROW else []
    table = new_table("minute (UTC)" if minutes else "engine", *titles, *(["GPU"] if has_device else []))
    for row in report.rows:
        gaps = (row.idle_p50_ns, row.idle_p99_ns, row.idle_max_ns)
        cells = [
            units.count(row.step_count),
            units.percent(row.busy_ratio, 0),
            units.percent(row.idle_ratio, 1),
            *(units.duration(value) for value in gaps),
            units.count(row.long_gaps),
            f"{row.requests_mean:.1f}",
            f"{row.waiting_mean:.1f}",
            *([units.count(row.preempted)] if width >= NARROW else []),
        ]
        if has_device:
            cells.append(units.percent(row.device_ratio, 0))
        table.add_row(row_name(row, short=short, with_engine=several), *cells)
    return table


def row_name(row: EngineRow, *, short: bool, with_engine: bool) -> str:
    """Return what a line is about: the engine, or its minute, `short` without the day."""
    engine = row.engine_id or UNKNOWN
    if row.minute is None:
        return engine
    minute = clock(datetime_ns(row.minute))[11 if short else 5 : 16]
    return f"{minute} {engine}" if with_engine else minute


def gap_table(report: EngineReport) -> Table:
    """Return a line for each of the longest gaps."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("began (UTC)", no_wrap=True)
    table.add_column("gap", justify="right", no_wrap=True)
    if several_engines(report):
        table.add_column("engine", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("followed by")
    for gap in report.gaps:
        cells = [gap_time(gap), units.duration(gap.idle_ns), str(gap.step), units.duration(gap.wall_ns)]
        if several_engines(report):
            cells.insert(2, gap.engine_id or UNKNOWN)
        table.add_row(*cells, followed_by(gap))
    return table


def gap_time(gap: Gap) -> str:
    """Return when a gap began, to the millisecond."""
    begin_ns = datetime_ns(gap.start)
    return f"{clock(begin_ns)[5:]}.{begin_ns // 1_000_000 % 1000:03}"


def several_engines(report: EngineReport) -> bool:
    """Return whether the report is about more than one engine."""
    return len({(row.service, row.instance, row.engine_id) for row in report.rows}) > 1


def engines_json(report: EngineReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "by": report.by,
        "threshold_ns": report.threshold_ns,
        "engines": [asdict(row) for row in report.rows],
        "gaps": [asdict(gap) for gap in report.gaps],
        "diagnosis": diagnose(report),
    }


def engines_csv(report: EngineReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(EngineRow)]
    return names, [[getattr(row, name) for name in names] for row in report.rows]
