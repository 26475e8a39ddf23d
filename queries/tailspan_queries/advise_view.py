"""The advice for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `factor`, `by`, `requests`, `error_ratio`, `stages` [{stage, mean_ns, share_ratio,
tail_share_ratio, mean_change_ratio, p50_change_ratio, p99_change_ratio, p99_amdahl_ratio, ttft_p99_change_ratio,
remedies [{name, cost, source}]}] in their order, `diagnosis`, `notes`. CSV: the stages without remedies.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.advise import Advice, Gain
from tailspan_queries.advise_remedies import REMEDIES
from tailspan_queries.breakdown import headline, new_table, plural
from tailspan_queries.console import STAGE_STYLES
from tailspan_queries.layers_speedup import moved
from tailspan_queries.whatif_records import WAITING
from tailspan_queries.whatif_view import cautions

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

ADVISED_STAGES = 3
NAMES = {"p99": "P99", "p50": "P50", "mean": "mean"}
WORTH = 0.005
"""Change of what was ranked by from which on remedies are listed."""


def render_advice(report: Advice) -> RenderableType:
    """Return the ranking, and under it the remedies for the first stages."""
    from rich.console import Group
    from rich.text import Text

    base = report.base
    parts: list[RenderableType] = [
        Text(headline(plural(base.requests, "request"), base.window, base.filters), style="bold"),
        Text(f"each stage {report.factor:g} times as fast, through a replay of the requests; by {NAMES[report.by]}"),
        Text(),
        ranking(report),
        Text(),
        Text(diagnose(report), style="bold"),
    ]
    for row in advised(report):
        parts += [Text(), remedy_table(row)]
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(base)))


def ranking(report: Advice) -> Table:
    """Return a line for each stage."""
    from rich.text import Text

    table = new_table("stage", "mean", "share", "slowest 1 %", "e2e mean", "P50", "P99", "Amdahl P99", "TTFT P99")
    for row in report.rows:
        changes = (
            row.mean_change_ratio,
            row.p50_change_ratio,
            row.p99_change_ratio,
            row.p99_amdahl_ratio,
            row.ttft_p99_change_ratio,
        )
        table.add_row(
            Text(row.stage, style=STAGE_STYLES.get(row.stage, "white")),
            units.duration(row.mean_ns),
            units.percent(row.share_ratio),
            units.percent(row.tail_share_ratio),
            *(signed(value) for value in changes),
        )
    return table


def signed(ratio: float | None) -> str:
    """Return a change with its sign; what is no change has none."""
    return "0" if ratio is not None and abs(ratio) < 5e-5 else units.signed(ratio)


def remedy_table(row: Gain) -> Table:
    """Return the remedies for a stage."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    table.expand = True
    table.add_column(row.stage, ratio=5)
    table.add_column("what it costs", ratio=4)
    table.add_column("see", ratio=3)
    for remedy in REMEDIES[row.stage]:
        table.add_row(remedy.name, remedy.cost, remedy.source)
    return table


def advised(report: Advice) -> list[Gain]:
    """Return the stages whose remedies are shown: the first ones, as far as they gain anything."""
    worth = [row for row in report.rows if changed(report, row) <= -WORTH]
    return worth[:ADVISED_STAGES]


def changed(report: Advice, row: Gain) -> float:
    """Return the change that the ranking goes by."""
    value: float = getattr(row, f"{report.by}_change_ratio")
    return value


def diagnose(report: Advice) -> str:
    """Return the answer in a sentence: the first stage that is work, and the queue if it comes before it."""
    works = [row for row in report.rows if row.stage not in WAITING]
    if not works or changed(report, works[0]) > -WORTH:
        return "No stage that does work would gain more than 0.5 %."
    first = works[0]
    said = (
        f"Start with {first.stage}: {report.factor:g} times as fast, end-to-end {NAMES[report.by]} "
        f"{moved(changed(report, first))}"
    )
    if first.stage in ("prefill", "decode") and first.p99_change_ratio < 1.2 * first.p99_amdahl_ratio:
        said += ", more than its share, because the queue becomes shorter too"
    if report.rows[0].stage in WAITING:
        said += (
            f". More time is spent in {report.rows[0].stage}, which is waiting: what makes it shorter is listed there"
        )
    return f"{said}."


def advice_json(report: Advice) -> dict[str, Any]:
    """Return the report as the module says."""
    base = report.base
    return {
        "window": base.window.as_json(),
        "filters": base.filters.parameters,
        "factor": report.factor,
        "by": report.by,
        "requests": base.requests,
        "error_ratio": base.error_ratio if base.measures else None,
        "stages": [
            {**asdict(row), "remedies": [asdict(remedy) for remedy in REMEDIES[row.stage]]} for row in report.rows
        ],
        "diagnosis": diagnose(report) if report.rows else "",
        "notes": cautions(base) if report.rows else list(base.notes),
    }


def advice_csv(report: Advice) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(Gain)]
    return names, [[getattr(row, name) for name in names] for row in report.rows]
