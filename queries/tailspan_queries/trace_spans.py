"""The spans of one trace, and the stages of requests that only the engine's own tracing reported.

In: a client, a trace id, the window in which its spans began. Out: `SpanRow`.
Of a request that only the engine reported, what it took is in attributes of its span: the span becomes one of role
`request` with stages below it, which query `trace_engine` computes. It is asked only where there is such a span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailspan import attributes
from tailspan_queries import waterfall
from tailspan_queries.client import Client
from tailspan_queries.times import Window

_INTERNAL = 1
"""OTLP span kind."""


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One span; the names are the columns of query `trace`."""

    span_id: str
    parent_span_id: str
    service: str
    instance: str
    name: str
    kind: int
    start_ns: int
    duration_ns: int
    role: str
    stage: str
    model: str
    request_id: str
    engine_id: str
    first_step: int
    last_step: int
    status_code: int
    status_message: str
    input_tokens: int
    output_tokens: int
    busy_ns: int
    gpu_ns: int
    ttft_ns: int
    weight: float
    attributes_string: Mapping[str, str]
    attributes_int: Mapping[str, int]
    attributes_double: Mapping[str, float]
    attributes_bool: Mapping[str, bool]
    link_trace_ids: Sequence[str]

    @property
    def interval(self) -> waterfall.Interval:
        """Begin and end, ns since the epoch."""
        return self.start_ns, self.start_ns + self.duration_ns


def read_spans(client: Client, trace_id: str, window: Window, limit: int) -> tuple[SpanRow, ...]:
    """Return at most `limit` spans in the order of time.

    Raises: UserError as `client` says.
    """
    parameters = {"trace_id": trace_id, **window.parameters}
    spans = [SpanRow(**row) for row in client.run("trace", {**parameters, "limit": limit}).records()]
    if not any(span.role == "" and attributes.GEN_AI_LATENCY_E2E in span.attributes_double for span in spans):
        return tuple(spans)
    traced = {row["span_id"]: row for row in client.run("trace_engine", parameters).records()}
    found = [part for span in spans for part in with_stages(span, traced.get(span.span_id))]
    return tuple(sorted(found, key=lambda span: (span.start_ns, -span.duration_ns, span.span_id))[:limit])


def with_stages(span: SpanRow, traced: Mapping[str, Any] | None) -> Iterator[SpanRow]:
    """Return the span and, if it is a request by a row of query `trace_engine`, the stages below it."""
    if traced is None:
        yield span
        return
    own = {name: traced[name] for name in ("model", "request_id", "input_tokens", "output_tokens", "ttft_ns")}
    yield replace(span, role=attributes.ROLE_REQUEST, duration_ns=traced["e2e_ns"], **own)
    columns = (traced[name] for name in ("stage_span_ids", "stage_names", "offsets_ns", "walls_ns"))
    for span_id, name, offset_ns, wall_ns in zip(*columns, strict=True):
        yield SpanRow(
            span_id=span_id,
            parent_span_id=span.span_id,
            service=span.service,
            instance=span.instance,
            name=name,
            kind=_INTERNAL,
            start_ns=span.start_ns + offset_ns,
            duration_ns=wall_ns,
            role=attributes.ROLE_STAGE,
            stage=name,
            model=traced["model"],
            request_id=traced["request_id"],
            engine_id="",
            first_step=0,
            last_step=0,
            status_code=0,
            status_message="",
            input_tokens=0,
            output_tokens=0,
            busy_ns=0,
            gpu_ns=-1,
            ttft_ns=0,
            weight=1.0,
            attributes_string={},
            attributes_int={},
            attributes_double={},
            attributes_bool={},
            link_trace_ids=(),
        )
