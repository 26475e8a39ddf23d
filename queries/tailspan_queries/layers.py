"""How long the parts of the model take on the device: by kind, by layer, by part, by batch size.

In: a client, a window, filters, what a line is about. Out: `LayerReport`. Times are device time of sampled steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

BREAKDOWNS = ("kind", "layer", "part")
"""A line for each of these; values of the parameter `by` of the queries about layers."""
PHASES = ("decode", "prefill", "all")
OUTSIDE = "outside"
"""Name of what is in no layer, in reports by layer."""
EVERY_LINE = 10_000
SLOW_LAYER = 0.1
"""How much longer than the median layer a layer must take to be named."""
FEW_STEPS = 20
"""Sampled steps that a median should rest on."""
NAMED_LAYERS = 3
LEAST_LAYERS = 4
"""Layers of a kind of which a median says what is usual."""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One line of the report; the names are the columns of query `layers`."""

    model: str
    batch_min: int
    batch_max: int
    layer: int | None
    kind: str
    step_count: int
    kept_count: int
    p50_ns: float
    p99_ns: float
    mean_ns: float
    per_token_ns: float | None
    total_ns: float
    share_ratio: float
    decode_share_ratio: float | None
    prefill_share_ratio: float | None
    deviation_ratio: float | None
    device: str
    mode: str


@dataclass(frozen=True, slots=True)
class LayerReport:
    """The lines of a window by model and batch size, the largest first; layers in their order."""

    window: Window
    filters: Filters
    by: str
    phase: str
    batch: bool
    rows: tuple[LayerRow, ...]
    slow: tuple[LayerRow, ...]
    """Parts whose layer takes longer than the median layer, the most time beyond it first."""


def layer_report(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    by: str = "kind",
    phase: str = "all",
    *,
    batch: bool = False,
    limit: int = EVERY_LINE,
) -> LayerReport:
    """Ask how long the parts of the model took; `by` is one of `BREAKDOWNS`, `phase` one of `PHASES`."""
    parameters = {**window.parameters, **filters.parameters, "phase": phase}
    asked = {**parameters, "by": by, "batch": int(batch), "limit": limit}
    rows = [LayerRow(**row) for row in client.run("layers", asked).records()]
    if by == "layer":
        rows.sort(key=lambda row: (row.model, row.batch_min, row.layer is None, row.layer or 0))
    parts = client.run("layers", {**parameters, "by": "part"}).records() if rows else []
    return LayerReport(window, filters, by, phase, batch, tuple(rows), slow_parts([LayerRow(**row) for row in parts]))


def slow_parts(rows: Sequence[LayerRow]) -> tuple[LayerRow, ...]:
    """Return the parts that take much longer than the same kind in the median layer."""
    usual = {(row.model, row.kind): 0 for row in rows}
    for row in rows:
        usual[row.model, row.kind] += row.layer is not None
    slow = [
        row
        for row in rows
        if (row.deviation_ratio or 0.0) >= SLOW_LAYER
        and usual[row.model, row.kind] >= LEAST_LAYERS
        and row.kept_count >= FEW_STEPS
    ]
    return tuple(sorted(slow, key=lambda row: -beyond_median(row))[:NAMED_LAYERS])


def beyond_median(row: LayerRow) -> float:
    """Return what a part takes beyond the median layer, as a share of all device time."""
    deviation = row.deviation_ratio or 0.0
    return row.share_ratio * deviation / (1 + deviation)


def part_name(by: str, layer: int | None, kind: str) -> str:
    """Return the name of a line: `attention`, `12`, `12/attention`; what is in no layer by its kind, or `outside`."""
    if by == "layer":
        return OUTSIDE if layer is None else f"layer {layer}"
    return kind if layer is None else f"{layer}/{kind}"


def diagnose(report: LayerReport) -> str:
    """Return one sentence about the largest line and the slow layers; empty without lines."""
    if not report.rows:
        return ""
    parts = [row for row in report.rows if row.batch_min == report.rows[0].batch_min]
    largest = max(parts, key=lambda row: row.total_ns)
    name = part_name(report.by, largest.layer, largest.kind)
    steps = "device time" if report.phase == "all" else f"the device time of {report.phase} steps"
    size = f" at batch {batch_text(largest)}" if report.batch else ""
    model = f"{largest.model or '(unknown)'}: " if len({row.model for row in report.rows}) > 1 else ""
    sentence = f"{model}{name} is {units.percent_text(largest.share_ratio)} of {steps}{size}"
    if not report.slow:
        return f"{sentence}. `tailspan layers --e2e` says what that is of end-to-end latency."
    slow = ", ".join(f"{slow_name(report, row)} +{slower(row)}" for row in report.slow)
    return f"{sentence}; slower than the median layer: {slow}."


def slow_name(report: LayerReport, row: LayerRow) -> str:
    """Return the name of a slow part, with its model where there are several."""
    name = part_name("part", row.layer, row.kind)
    return f"{name} of {row.model}" if len({other.model for other in report.rows}) > 1 else name


def slower(row: LayerRow) -> str:
    """Return how much longer than the median layer a part takes."""
    return units.percent_text(row.deviation_ratio or 0.0)


def batch_text(row: LayerRow) -> str:
    """Return a bucket of batch sizes: `1`, `2-4`."""
    return f"{row.batch_min}" if row.batch_min == row.batch_max else f"{row.batch_min}-{row.batch_max}"


def cautions(report: LayerReport) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    found = []
    fewest = min((row.kept_count for row in report.rows), default=FEW_STEPS)
    if fewest < FEW_STEPS:
        found.append(
            f"some lines rest on {fewest} sampled step{'' if fewest == 1 else 's'} (at least {FEW_STEPS} needed)"
        )
    if any("cpu" in row.device.split() for row in report.rows):
        found.append("device cpu: these are times of the host's clock")
    return found
