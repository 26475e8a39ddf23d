"""The stage report for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window` {since, until}, `filters`, `method` {name, relative_error}, `requests`, `kept_requests`,
`tail` {quantile, requests, threshold_ns, mean_ns, read_ratio}, `stages` [{stage, count, kept_count, error_count,
share_ratio, tail_share_ratio, tail_share_margin_ratio, tail_mean_ns, variance_share_ratio, wall_ns, busy_ns, gpu_ns}],
`diagnosis`, `cautions`, `warnings`,
`events` [{every column of query `worker_events`}]. The three times are {count, sum, p50, p90, p95, p99, p999, max} in
nanoseconds, or null where they were not measured. Of sampled requests, counts are estimates, kept ones are stored.
CSV: one line a stage, one column a number, named as in the query `stages` with the tail's columns added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.console import PLAIN_WIDTH, STAGE_STYLES
from tailspan_queries.diagnosis import busy_ratio, needed, quantile_name
from tailspan_queries.records import QUANTILES, REQUEST, Distribution, StageReport, StageRow
from tailspan_queries.times import clock

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

KINDS = ("wall", "busy", "gpu")
KIND_TITLES = {"wall": "wall time", "busy": "busy time", "gpu": "GPU time"}
BASE_WIDTH = 82
"""Columns that stage, count, percentiles and shares take."""
SHORTEST_BAR, LONGEST_BAR = 5, 40
BAR_CELLS = frozenset(units.EIGHTHS)
PERCENTILE_COLUMNS = 3 + len(QUANTILES)
"""Stage, count, the percentiles and the maximum."""


def render_stages(report: StageReport, kinds: Sequence[str] = ("wall",), width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the report as tables, one for each kind of time, with diagnosis, cautions and warnings under them.

    `width` is the columns there are: below 100 the bars go first, then the busy shares, then the decimals.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(headline(report), style="bold"), Text(subtitle(report), style="dim"), Text()]
    for number, kind in enumerate(kinds):
        parts += [Text()] if number else []
        if kind == "wall":
            parts.append(wall_table(report, width))
        elif any(measured(row, kind) for row in report.rows):
            parts.append(kind_table(report, kind))
        else:
            parts.append(Text(f"{KIND_TITLES[kind]}: not measured for these requests", style="dim"))
    if report.diagnosis:
        parts += [Text(), Text(report.diagnosis, style="bold")]
    parts += [Text(f"! {line}", style="yellow") for line in report.cautions]
    return Group(*parts, *warning_texts(report))


def warning_texts(report: StageReport) -> list[Text]:
    """Return the warnings; they are worth printing without a table too."""
    from rich.text import Text

    return [Text(f"! {line}", style="bold red") for line in report.warnings]


def headline(report: StageReport) -> str:
    """Say how many requests of which time the report is about."""
    window = f"{clock(report.window.since_ns)} to {clock(report.window.until_ns)} UTC"
    chosen = " · ".join(f"{name} {value}" for name, value in report.filters.chosen.items())
    noun = "request" if report.kept_requests == 1 else "requests"
    amount = f"{report.kept_requests:,} {noun}"
    if report.kept_requests < report.requests:
        amount += f" kept of about {report.requests:,}"
    return " · ".join(filter(None, (amount, window, chosen)))


def subtitle(report: StageReport) -> str:
    """Say how the percentiles were computed and what the tail is."""
    tail = report.tail
    name = quantile_name(tail.quantile)
    noun = "request" if tail.requests == 1 else "requests"
    held = f"{tail.requests:,} {noun} of {units.duration(tail.threshold_ns)} or more"
    said = f"{report.method.statement}\nat {name}: share of the time of "
    margins = [row.tail_share_margin_ratio or 0.0 for row in report.rows]
    if tail.sample.whole or not margins:
        return f"{said}the {held}"
    error = units.percent_text(max(margins), 1)
    return f"{said}about {held},\nread from {tail.sample.text}: ±{error} at most, 19 times in 20"


def wall_table(report: StageReport, width: int) -> Table:
    """Return the main table: percentiles of wall time, shares, and how busy the stage was."""
    has_gpu = any(row.gpu for row in report.rows)
    bar_width = min(width - BASE_WIDTH - (5 if has_gpu else 0) - 6, LONGEST_BAR)
    digits = 1 if width >= BASE_WIDTH else 0
    table = new_table("stage")
    add_percentiles(table)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column(f"at {quantile_name(report.tail.quantile)}", justify="right", no_wrap=True)
    if bar_width >= SHORTEST_BAR:
        table.add_column("", width=bar_width, no_wrap=True)
    if width >= BASE_WIDTH + 5:
        table.add_column("busy", justify="right", no_wrap=True)
    if has_gpu and width >= BASE_WIDTH + 10:
        table.add_column("GPU", justify="right", no_wrap=True)
    for row in report.rows:
        cells = [units.percent(share, digits) for share in (row.share_ratio, row.tail_share_ratio)]
        if bar_width >= SHORTEST_BAR:
            cells.append("" if row.stage == REQUEST else units.bar(row.tail_share_ratio, bar_width))
        cells += [busy_share(row, row.busy), busy_share(row, row.gpu)]
        add_row(table, report, row, row.wall, cells[: len(table.columns) - PERCENTILE_COLUMNS])
    return table


def kind_table(report: StageReport, kind: str) -> Table:
    """Return the percentiles of busy or GPU time."""
    table = new_table(KIND_TITLES[kind])
    add_percentiles(table)
    for row in report.rows:
        if found := measured(row, kind):
            add_row(table, report, row, found, [])
    return table


def new_table(title: str) -> Table:
    """Return an empty table with columns for stage and count."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True, min_width=12)
    table.add_column("count", justify="right", no_wrap=True)
    return table


def add_percentiles(table: Table) -> None:
    """Add a column for each percentile and for the maximum."""
    for quantile in QUANTILES.values():
        table.add_column(quantile_name(quantile), justify="right", no_wrap=True)
    table.add_column("max", justify="right", no_wrap=True)


def add_row(table: Table, report: StageReport, row: StageRow, times: Distribution, cells: Sequence[str]) -> None:
    """Add one stage; percentiles that the requests are too few for are dimmed."""
    from rich.text import Text

    style = STAGE_STYLES.get(row.stage, "white")
    if row.stage == REQUEST and table.rows:
        table.add_section()
    found = [Text(row.stage, style=style), Text(units.count(times.count))]
    for name, quantile in QUANTILES.items():
        dim = report.kept_requests < needed(quantile)
        found.append(Text(units.duration(getattr(times, f"{name}_ns")), style="dim" if dim else ""))
    found.append(Text(units.duration(times.max_ns)))
    found += [Text(text, style=style if set(text) <= BAR_CELLS else "") for text in cells]
    table.add_row(*found, style="bold" if row.stage == REQUEST else "")


def measured(row: StageRow, kind: str) -> Distribution | None:
    """Return the times of one kind, if they were measured."""
    found: Distribution | None = getattr(row, kind)
    return found


def busy_share(row: StageRow, times: Distribution | None) -> str:
    """Return which part of the stage's wall time was busy."""
    return units.percent(busy_ratio(row, times), 0)


def stages_json(report: StageReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "method": {"name": report.method.name, "relative_error": report.method.relative_error},
        "requests": report.requests,
        "kept_requests": report.kept_requests,
        "tail": {
            "quantile": report.tail.quantile,
            "requests": report.tail.requests,
            "threshold_ns": report.tail.threshold_ns,
            "mean_ns": report.tail.mean_ns,
            "read_ratio": report.tail.sample.ratio,
        },
        "stages": [
            {
                "stage": row.stage,
                "count": row.count,
                "kept_count": row.kept_count,
                "error_count": row.error_count,
                "share_ratio": row.share_ratio,
                "tail_share_ratio": row.tail_share_ratio,
                "tail_share_margin_ratio": row.tail_share_margin_ratio,
                "tail_mean_ns": row.tail_mean_ns,
                "variance_share_ratio": row.variance_share_ratio,
                **{f"{kind}_ns": times_json(measured(row, kind)) for kind in KINDS},
            }
            for row in report.rows
        ],
        "diagnosis": report.diagnosis,
        "cautions": list(report.cautions),
        "warnings": list(report.warnings),
        "events": [asdict(event) for event in report.events],
    }


def times_json(times: Distribution | None) -> dict[str, float] | None:
    """Return one kind of time as a JSON object, nanoseconds."""
    if times is None:
        return None
    names = ("sum", *QUANTILES, "max")
    return {"count": times.count, **{name: getattr(times, f"{name}_ns") for name in names}}


def stages_csv(report: StageReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    shares = (*("share_ratio", "tail_share_ratio", "tail_share_margin_ratio", "tail_mean_ns", "variance_share_ratio"),)
    names = ("sum", *QUANTILES, "max")
    described = ("stage", "count", "kept_count", "error_count", *shares)
    header = [*described, *(f"{kind}_{name}_ns" for kind in KINDS for name in names)]
    lines = []
    for row in report.rows:
        line: list[Any] = [getattr(row, name) for name in described]
        for kind in KINDS:
            times = measured(row, kind)
            line += [getattr(times, f"{name}_ns") if times else None for name in names]
        lines.append(line)
    return header, lines
