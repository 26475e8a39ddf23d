"""The report about devices for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `rows` [{every column of query `gpu`}], `diagnosis`, `cautions`. CSV: these columns.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import NARROW, UNKNOWN, headline, plural
from tailspan_queries.console import PLAIN_WIDTH
from tailspan_queries.gpu import GpuReport, GpuRow, cautions, device_name, diagnose

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LEGEND = (
    "busy: in steps; idle: between steps although requests were there; launch: in steps at the pace of their launches; "
    "gap: idle time before a step"
)


def render_gpu(report: GpuReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the report as a table with the diagnosis under it."""
    from rich.console import Group
    from rich.text import Text

    amount = plural(sum(row.step_count for row in report.rows), "step")
    return Group(
        Text(headline(amount, report.window, report.filters), style="bold"),
        Text(LEGEND),
        Text(),
        gpu_table(report, width),
        Text(),
        Text(diagnose(report), style="bold"),
        *(Text(f"! {line}", style="yellow") for line in cautions(report)),
    )


def gpu_table(report: GpuReport, width: int) -> Table:
    """Return a line for each engine."""
    from rich import box
    from rich.table import Table

    wide = width >= NARROW
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")
    for title in ("engine", "model", "device"):
        table.add_column(title, overflow="fold")
    titles = ["steps", "busy", "idle", "launch", "busy p50", "p99", "gap p50", "p99"]
    untimed = wide and any(row.untimed_count for row in report.rows)
    for title in (*titles, *["prefill"] * wide, *["untimed"] * untimed):
        table.add_column(title, justify="right", no_wrap=True)
    shared = {
        row.engine_id for row in report.rows if sum(row.engine_id == other.engine_id for other in report.rows) > 1
    }
    for row in report.rows:
        name = f"{row.engine_id or UNKNOWN} of {row.instance}" if row.engine_id in shared else row.engine_id or UNKNOWN
        table.add_row(
            name, row.model or UNKNOWN, device_name(row.device) or units.ABSENT, *numbers(row)[: len(table.columns) - 3]
        )
    return table


def numbers(row: GpuRow) -> list[str]:
    """Return the numbers of one line."""
    prefill = row.prefill_busy_ns / row.busy_ns if row.busy_ns else None
    return [
        units.count(row.step_count),
        units.percent(row.busy_ratio, 0),
        units.percent(row.idle_ratio, 1),
        units.percent(row.launched_ratio, 0),
        *(units.duration(value) for value in (row.busy_p50_ns, row.busy_p99_ns, row.idle_p50_ns, row.idle_p99_ns)),
        units.percent(prefill, 0),
        units.count(row.untimed_count),
    ]


def gpu_json(report: GpuReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "rows": [asdict(row) for row in report.rows],
        "diagnosis": diagnose(report),
        "cautions": cautions(report),
    }


def gpu_csv(report: GpuReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(GpuRow)]
    return names, [[getattr(row, name) for name in names] for row in report.rows]
