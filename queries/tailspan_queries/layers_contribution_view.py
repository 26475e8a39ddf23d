"""The report of what end-to-end time consists of, for people (rich), programs (JSON) and spreadsheets (CSV).

What JSON and CSV hold is in `layers_contribution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import headline, new_table, plural
from tailspan_queries.console import STAGE_STYLES
from tailspan_queries.layers import part_name
from tailspan_queries.layers_contribution import cautions, diagnose, rest_name
from tailspan_queries.layers_records import Contribution, ContributionReport
from tailspan_queries.layers_view import TITLES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LEGEND = "what a request's end-to-end time consists of; the lines above the last one sum to it"


def render_contribution(report: ContributionReport, limit: int | None = None) -> RenderableType:
    """Return the report as a table with the diagnosis under it; parts beyond `limit` are one line."""
    from rich.console import Group
    from rich.text import Text

    whole = report.whole
    count = whole.request_count if whole else 0
    return Group(
        Text(headline(plural(count, "request"), report.window, report.filters), style="bold"),
        Text(LEGEND),
        Text(),
        contribution_table(report, limit),
        Text(),
        Text(diagnose(report), style="bold"),
        *(Text(f"! {line}", style="yellow") for line in cautions(report)),
    )


def contribution_table(report: ContributionReport, limit: int | None) -> Table:
    """Return a line for each part of the model, for each part of the rest, and for the whole."""
    from rich.text import Text

    table = new_table(TITLES[report.by], "mean", "share", "in prefill", "in decode", "slowest 1 %", "share")
    shown = report.parts[:limit]
    for row in shown:
        table.add_row(part_name(report.by, row.layer, row.kind), *cells([row]))
    if others := report.parts[len(shown) :]:
        table.add_row(f"{len(others)} more", *cells(others))
    table.add_section()
    for row in report.rows:
        if row.what not in ("part", "request"):
            table.add_row(Text(rest_name(row), style=STAGE_STYLES.get(row.stage, "white")), *cells([row]))
    table.add_section()
    if report.whole:
        table.add_row("request", *cells([report.whole]), style="bold")
    return table


def cells(rows: Sequence[Contribution]) -> list[str]:
    """Return the numbers of lines that are shown as one."""
    prefill = sum(row.prefill_mean_ns for row in rows)
    decode = sum(row.decode_mean_ns for row in rows)
    return [
        units.duration(sum(row.mean_ns for row in rows)),
        units.percent(sum(row.share_ratio for row in rows)),
        units.duration(prefill) if prefill else "",
        units.duration(decode) if decode else "",
        units.duration(sum(row.tail_mean_ns for row in rows)),
        units.percent(sum(row.tail_share_ratio for row in rows)),
    ]


def contribution_json(report: ContributionReport) -> dict[str, Any]:
    """Return the report as the module `layers_contribution` says."""
    whole, predicted = report.whole, report.prediction
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "by": report.by,
        "requests": whole.request_count if whole else 0,
        "kept_requests": whole.kept_count if whole else 0,
        "tail_requests": whole.tail_count if whole else 0,
        "rows": [asdict(row) for row in report.rows] if whole else [],
        "speedups": [{"part": speedup.name, "factor": speedup.factor} for speedup in report.speedups],
        "prediction": predicted
        and {
            **asdict(predicted),
            "mean_change_ratio": predicted.mean_change_ratio,
            "tail_change_ratio": predicted.tail_change_ratio,
        },
        "launched_ratio": report.launched_ratio,
        "diagnosis": diagnose(report),
        "cautions": cautions(report),
    }


def contribution_csv(report: ContributionReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(Contribution)]
    rows = report.rows if report.whole else ()
    return names, [[getattr(row, name) for name in names] for row in rows]
