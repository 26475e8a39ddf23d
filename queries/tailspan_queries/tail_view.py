"""The tail report for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `quantile`, `by`, `read_ratio`, `overlapping`, `rows` [{every column of query
`tail_by`, and `tail_to_mean_ratio`}], `diagnosis`, `cautions`. CSV: the same columns. `read_ratio` is the part of the
traces that was read, 1 for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import headline, new_table, plural
from tailspan_queries.console import PLAIN_WIDTH, STAGE_STYLES
from tailspan_queries.diagnosis import quantile_name
from tailspan_queries.records import REQUEST
from tailspan_queries.tail import EVERYTHING, TailReport, TailStage

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

BAR_WIDTH = 14
NARROW = 90
MOST_BESIDE_BAR = 8
"""Columns beside which a bar has room."""


def render_tail(report: TailReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the report as one table for each key, with diagnosis and cautions under them."""
    from rich.console import Group
    from rich.text import Text

    whole = [report.whole(key) for key in report.keys]
    amount = plural(sum(row.requests for row in whole), "request")
    kept = sum(row.kept_requests for row in whole)
    if kept < sum(row.requests for row in whole):
        amount = f"{kept:,} requests read of about {sum(row.requests for row in whole):,}"
    parts: list[RenderableType] = [Text(headline(amount, report.window, report.filters), style="bold")]
    for key in report.keys:
        parts += [Text(), Text(tail_line(report, key), style="dim"), table_of(report, key, width)]
    if report.diagnosis:
        parts += [Text(), Text(report.diagnosis, style="bold")]
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in report.cautions))


def tail_line(report: TailReport, key: str) -> str:
    """Say what the tail of a key is."""
    whole = report.whole(key)
    whose = (
        "" if report.by == EVERYTHING else f"{report.by} {report.label(key)} · {plural(whole.requests, 'request')} · "
    )
    held = plural(whole.tail_requests, "request")
    return f"{whose}tail: {held} of {units.duration(whole.threshold_ns)} ({quantile_name(report.quantile)}) or more"


def table_of(report: TailReport, key: str, width: int) -> Table:
    """Return the table of one key; its columns of shares each sum to 100 % above the last line."""
    from rich.text import Text

    columns = columns_of(report, narrow=width < NARROW)
    table = new_table("stage", *columns)
    table.columns[0].min_width = 12
    with_bar = width >= NARROW and len(columns) <= MOST_BESIDE_BAR
    if with_bar:
        table.add_column("", width=BAR_WIDTH, no_wrap=True)
    for row in report.of(key):
        if row.stage == REQUEST:
            table.add_section()
        style = STAGE_STYLES.get(row.stage, "white")
        cells = [text_of(row) for text_of in columns.values()]
        last = [Text(bar(row), style=style)] if with_bar else []
        table.add_row(Text(row.stage, style=style), *cells, *last, style="bold" if row.stage == REQUEST else "")
    return table


def columns_of(report: TailReport, *, narrow: bool) -> dict[str, Callable[[TailStage], str]]:
    """Return the columns beside the stage: title and text; the blank keeps the titles of the shares apart."""
    columns: dict[str, Callable[[TailStage], str]] = {
        "mean": lambda row: units.duration(row.mean_ns),
        "share": lambda row: units.percent(row.share_ratio),
        "in the tail": lambda row: units.duration(row.tail_mean_ns),
        " share": lambda row: units.percent(row.tail_share_ratio),
    }
    if not report.sample.whole:
        columns["±"] = margin_text
    if not (narrow and report.overlapping and "±" in columns):
        columns["to mean"] = times_text
    columns["variance"] = lambda row: units.percent(row.variance_share_ratio)
    if report.overlapping:
        columns["path"] = lambda row: units.percent(row.path_ratio)
        columns["tail path"] = lambda row: units.percent(row.tail_path_ratio)
    return columns


def margin_text(row: TailStage) -> str:
    """Return the sampling error of the share of the tail; of the whole, which is 100 %, there is none."""
    return "" if row.stage == REQUEST else units.percent(row.tail_share_margin_ratio)


def times_text(row: TailStage) -> str:
    """Return how many times as large the share of the tail is as that of the mean."""
    ratio = row.tail_to_mean_ratio
    return units.ABSENT if ratio is None or row.stage == REQUEST else f"{units.significant(ratio)} x"


def bar(row: TailStage) -> str:
    """Return the share of the tail as a bar."""
    return "" if row.stage == REQUEST else units.bar(row.tail_share_ratio, BAR_WIDTH)


def as_record(row: TailStage) -> dict[str, Any]:
    """Return one row with what is computed of it."""
    return {**asdict(row), "tail_to_mean_ratio": row.tail_to_mean_ratio}


def tail_json(report: TailReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "quantile": report.quantile,
        "by": report.by,
        "read_ratio": report.sample.ratio,
        "overlapping": report.overlapping,
        "rows": [as_record(row) for row in report.rows],
        "diagnosis": report.diagnosis,
        "cautions": list(report.cautions),
    }


def tail_csv(report: TailReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [*(field.name for field in fields(TailStage)), "tail_to_mean_ratio"]
    return names, [list(as_record(row).values()) for row in report.rows]
