"""Requests that nobody sent over HTTP: a script that calls an engine by itself."""

from __future__ import annotations

from functools import lru_cache

from opentelemetry import trace

from tailspan import attributes as attr
from tailspan.ids import format_traceparent
from tailspan.recorder import AttributeSet, Request, begin_request


def offline_request(
    begin_ns: int, model: str, traceparent: str | None = None, operation: str = "text_completion"
) -> Request:
    """Begin a root request for a call outside any request, under the active OpenTelemetry span if there is one."""
    if traceparent is None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            traceparent = format_traceparent(context.trace_id, context.span_id, int(context.trace_flags))
    return begin_request("generate", begin_ns, traceparent, _offline(model, operation))


@lru_cache(maxsize=64)
def _offline(model: str, operation: str) -> AttributeSet:
    return AttributeSet({attr.GEN_AI_OPERATION: operation, attr.GEN_AI_MODEL: model})
