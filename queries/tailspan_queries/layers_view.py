"""The report about layers for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `by`, `phase`, `batch`, `rows` [{every column of query `layers`}], `slow_layers` [the
same, by part], `diagnosis`, `cautions`. CSV: the columns of query `layers`.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import NARROW, UNKNOWN, headline, new_table, plural
from tailspan_queries.console import PLAIN_WIDTH
from tailspan_queries.layers import LayerReport, LayerRow, batch_text, cautions, diagnose, part_name, slow_name, slower

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

TITLES = {"kind": "kind", "layer": "layer", "part": "layer/kind"}
LEGEND = "device time in a step, from sampled steps, each counted as often as the steps that it stands for"


def render_layers(report: LayerReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return a table for each model with the diagnosis under them."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(headline(sampled_text(report), report.window, report.filters), style="bold"),
        Text(LEGEND),
    ]
    for model, rows in groupby(report.rows, key=lambda row: row.model):
        lines = list(rows)
        clocks = sorted({word for row in lines for word in row.device.split()})
        modes = sorted({word for row in lines for word in row.mode.split()})
        name = " · ".join(filter(None, (model or UNKNOWN, ", ".join(clocks), ", ".join(modes))))
        parts += [Text(), Text(name, style="bold"), layer_table(report, lines, width)]
    if report.slow:
        parts += [Text(), Text("slower than the median layer", style="bold"), slow_table(report)]
    parts += [Text(), Text(diagnose(report), style="bold")]
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(report)))


def sampled_text(report: LayerReport) -> str:
    """Say how many sampled steps stand for how many."""
    largest: dict[tuple[str, int], LayerRow] = {}
    for row in report.rows:
        key = row.model, row.batch_min
        if key not in largest or row.kept_count > largest[key].kept_count:
            largest[key] = row
    kept = sum(row.kept_count for row in largest.values())
    steps = sum(row.step_count for row in largest.values())
    phase = "" if report.phase == "all" else f"{report.phase} "
    return f"{kept:,} sampled of about {plural(steps, f'{phase}step')}"


def layer_table(report: LayerReport, rows: list[LayerRow], width: int) -> Table:
    """Return a line for each kind, layer or part, of each batch size if asked."""
    wide = width >= NARROW
    with_layers = report.by != "kind"
    titles = ["batch"] * report.batch + ["steps", "p50", "p99", "mean"] + ["a token", "of step"]
    if report.phase == "all" and wide:
        titles += ["of decode", "of prefill"]
    titles += ["to median"] * with_layers
    table = new_table(TITLES[report.by], *titles)
    before = None
    for row in rows:
        if before is not None and before != row.batch_min:
            table.add_section()
        before = row.batch_min
        cells = [batch_text(row)] * report.batch
        cells += [units.count(row.step_count)]
        cells += [units.duration(value) for value in (row.p50_ns, row.p99_ns, row.mean_ns, row.per_token_ns)]
        cells.append(units.percent(row.share_ratio))
        if report.phase == "all" and wide:
            cells += [units.percent(row.decode_share_ratio), units.percent(row.prefill_share_ratio)]
        if with_layers:
            cells.append(change(row.deviation_ratio))
        table.add_row(part_name(report.by, row.layer, row.kind), *cells)
    return table


def slow_table(report: LayerReport) -> Table:
    """Return a line for each part that takes longer than in the median layer."""
    table = new_table("layer/kind", "p50", "p99", "longer by", "of step")
    for row in report.slow:
        times = (units.duration(row.p50_ns), units.duration(row.p99_ns))
        longer = slower(row).replace(" ", "")
        table.add_row(slow_name(report, row), *times, longer, units.percent(row.share_ratio))
    return table


def change(ratio: float | None) -> str:
    """Return a change with its sign; nothing where there is none to tell."""
    if ratio is None:
        return ""
    text = units.percent(ratio)
    return text if ratio <= 0 else f"+{text}"


def layers_json(report: LayerReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "by": report.by,
        "phase": report.phase,
        "batch": report.batch,
        "rows": [asdict(row) for row in report.rows],
        "slow_layers": [asdict(row) for row in report.slow],
        "diagnosis": diagnose(report),
        "cautions": cautions(report),
    }


def layers_csv(report: LayerReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(LayerRow)]
    return names, [[getattr(row, name) for name in names] for row in report.rows]
