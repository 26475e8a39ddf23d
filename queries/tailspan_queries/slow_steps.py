"""The engine steps that a trace took part in: summed up by stage, and the slowest ones with what explains them.

In: a trace report. Out: tables for people. What explains a step is in the header of query `trace_slow_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tailspan_queries import units
from tailspan_queries.breakdown import new_table
from tailspan_queries.console import STAGE_STYLES
from tailspan_queries.times import datetime_ns

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tailspan_queries.traces import TraceReport

REASONS = {
    "prefill": "prefill of others",
    "own": "its own prefill",
    "batch": "larger batch",
    "idle": "idle before the step",
    "preemption": "eviction",
    "step": "slow for its batch",
    "usual": "as long as others",
    "unknown": "nothing to compare with",
}


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The engine steps from the first to the last of a stage; the names are the columns of query `trace_steps`."""

    steps: int
    requests_mean: float
    requests_max: int
    mixed_steps: int
    prefill_tokens: int
    others_tokens: int
    decode_tokens: int
    waiting_mean: float
    waiting_max: int
    kv_usage_max_ratio: float
    preempted: int
    wall_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One of the slowest steps; the names are the columns of query `trace_slow_steps`."""

    span_id: str
    stage: str
    step: int
    start: datetime
    cost_ns: int
    idle_ns: int
    requests: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    preempted: int
    kv_usage_ratio: float
    median_ns: float | None
    why: str
    why_ns: float


def step_tables(report: TraceReport) -> list[RenderableType]:
    """Return the tables of a trace that took part in engine steps; nothing for one that did not."""
    from rich.text import Text

    if not report.steps:
        return []
    parts: list[RenderableType] = [
        Text(),
        Text(
            "in the engine's batch (mixed: steps that computed prompts; others' tok: of other requests)", style="bold"
        ),
        summary_table(report),
    ]
    if report.slow_steps:
        parts += [Text(), Text("slowest steps", style="bold"), slow_table(report.slow_steps, report.interval[0])]
    return parts


def summary_table(report: TraceReport) -> Table:
    """Return a line for each stage that took part in steps."""
    from rich.text import Text

    titles = ("steps", "batch (max)", "mixed", "others' tok", "wait (max)", "KV max", "evicted", "idle")
    table = new_table("stage", *titles)
    for span in report.spans:
        found = report.steps.get(span.span_id)
        if found is None:
            continue
        table.add_row(
            Text(span.name, style=STAGE_STYLES.get(span.stage, "white")),
            units.count(found.steps),
            f"{found.requests_mean:.1f} ({found.requests_max:,})",
            units.count(found.mixed_steps),
            units.count(found.others_tokens),
            f"{found.waiting_mean:.1f} ({found.waiting_max:,})",
            units.percent(found.kv_usage_max_ratio, 0) if found.kv_usage_max_ratio else units.ABSENT,
            units.count(found.preempted),
            units.duration(found.idle_ns),
        )
    return table


def slow_table(steps: Sequence[SlowStep], begin_ns: int) -> Table:
    """Return a line for each of the slowest steps; `at` counts from the begin of the trace, `begin_ns`."""
    from rich.text import Text

    table = new_table("stage", "step", "at", "took", "idle", "batch", "prefill", "")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    table.columns[-1].header = "mostly because of"
    for step in steps:
        reason = REASONS.get(step.why, step.why)
        table.add_row(
            Text(step.stage, style=STAGE_STYLES.get(step.stage, "white")),
            str(step.step),
            units.duration(datetime_ns(step.start) - begin_ns),
            units.duration(step.cost_ns),
            units.duration(step.idle_ns),
            units.count(step.requests),
            f"{units.count(step.prefill_tokens)} tok" if step.prefill_tokens else "",
            f"{reason} +{units.duration(step.why_ns)}" if step.why_ns else reason,
        )
    return table
