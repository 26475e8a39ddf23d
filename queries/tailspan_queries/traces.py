"""The trace report: every span of one trace, and for each request in it the ledger of its stages.

In: a client and what the user calls the trace. Out: `TraceReport`.
A stage belongs to the request whose span is its parent, so two requests in one trace keep their own ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tailspan import attributes
from tailspan_queries import waterfall
from tailspan_queries.client import Client
from tailspan_queries.lookup import find_trace
from tailspan_queries.slow_steps import SlowStep, StepSummary
from tailspan_queries.trace_spans import SpanRow, read_spans

SPAN_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Ledger:
    """One request: its stages in the order of time, and what they leave over."""

    request: SpanRow
    stages: tuple[SpanRow, ...]
    gaps: tuple[waterfall.Interval, ...]

    @property
    def unattributed_ns(self) -> int:
        """End-to-end time less the sum of the stages; negative if stages overlap."""
        return self.request.duration_ns - sum(stage.duration_ns for stage in self.stages)

    @property
    def totals_ns(self) -> dict[str, int]:
        """Wall time of each stage and `unattributed`, in the order of time."""
        totals: dict[str, int] = {}
        for stage in self.stages:
            totals[stage.stage] = totals.get(stage.stage, 0) + stage.duration_ns
        return {**totals, attributes.UNATTRIBUTED: self.unattributed_ns}


@dataclass(frozen=True, slots=True)
class TraceReport:
    """One trace: spans in the order of time, requests among them, engine steps by span id, and the slowest of those."""

    trace_id: str
    spans: tuple[SpanRow, ...]
    requests: tuple[Ledger, ...]
    steps: Mapping[str, StepSummary]
    slow_steps: tuple[SlowStep, ...] = ()

    @property
    def interval(self) -> waterfall.Interval:
        """Begin of the first span and end of the last, ns since the epoch."""
        return min(span.start_ns for span in self.spans), max(span.interval[1] for span in self.spans)

    @property
    def truncated(self) -> bool:
        """Whether the trace holds more spans than are listed."""
        return len(self.spans) >= SPAN_LIMIT


def trace_report(client: Client, text: str) -> TraceReport:
    """Find the trace that `text` names and return its report.

    Raises: UserError if there is no such trace, more than one, or as `client` says.
    """
    found = find_trace(client, text)
    parameters = {"trace_id": found.trace_id, **found.window.parameters}
    spans = read_spans(client, found.trace_id, found.window, SPAN_LIMIT)
    in_engine = any(span.engine_id and span.last_step for span in spans)
    steps = client.run("trace_steps", parameters).records() if in_engine else []
    slow = client.run("trace_slow_steps", parameters).records() if steps else []
    return TraceReport(
        trace_id=found.trace_id,
        spans=spans,
        requests=ledgers(spans),
        steps={row["span_id"]: step_summary(row) for row in steps},
        slow_steps=tuple(SlowStep(**row) for row in slow),
    )


def step_summary(row: Mapping[str, Any]) -> StepSummary:
    """Turn one row of query `trace_steps` into a record."""
    return StepSummary(**{field.name: row[field.name] for field in fields(StepSummary)})


def ledgers(spans: Sequence[SpanRow]) -> tuple[Ledger, ...]:
    """Return a ledger for each request span, in the order of time."""
    found = []
    for request in spans:
        if request.role != attributes.ROLE_REQUEST:
            continue
        stages = tuple(
            span for span in spans if span.role == attributes.ROLE_STAGE and span.parent_span_id == request.span_id
        )
        uncovered = waterfall.gaps(request.interval, [stage.interval for stage in stages])
        found.append(Ledger(request, stages, tuple(uncovered)))
    return tuple(found)


def tree(spans: Sequence[SpanRow]) -> list[tuple[int, SpanRow]]:
    """Return the spans with their depth, each parent before its children, siblings in the order of time.

    A span whose parent is not in the trace is a root, and so is the first of spans that name each other as parents.
    """
    known = {span.span_id for span in spans}
    children: dict[str, list[SpanRow]] = {}
    for span in spans:
        parent = span.parent_span_id if span.parent_span_id in known and span.parent_span_id != span.span_id else ""
        children.setdefault(parent, []).append(span)
    ordered: list[tuple[int, SpanRow]] = []
    seen: set[int] = set()
    for root in (*children.get("", ()), *spans):
        pending = [(0, root)]
        while pending:
            depth, span = pending.pop()
            if id(span) in seen:
                continue
            seen.add(id(span))
            ordered.append((depth, span))
            pending += [(depth + 1, child) for child in reversed(children.get(span.span_id, ()))]
    return ordered
