"""A span as the agent holds it until an exporter takes it; `encode` makes OTLP bytes of it, `readable` the SDK's span.

Units: wall-clock ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tailspan import attributes as attr
from tailspan.agent.decode import Value
from tailspan.version import __version__

SCOPE = InstrumentationScope(attr.SCOPE_NAME, __version__)


class Link(NamedTuple):
    """A reference to a span of another trace."""

    trace_id: int
    span_id: int
    flags: int = TraceFlags.SAMPLED
    attributes: Mapping[str, Value] = {}


class Span(NamedTuple):
    """What every exporter is told about a span. A named tuple because thousands are made a second."""

    resource: Resource
    name: str
    trace_id: int
    span_id: int
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    flags: int = TraceFlags.SAMPLED
    parent_id: int = 0
    """0: no parent."""
    is_entry: bool = False
    """Whether this span answers a caller: kind SERVER, and its parent is another process's."""
    error: str | None = None
    """Why its status is ERROR; None where it is not."""
    links: tuple[Link, ...] = ()


def readable(span: Span) -> ReadableSpan:
    """Return the same span for exporters that take the SDK's."""
    parent = None
    if span.parent_id:
        parent = _context(span.trace_id, span.parent_id, span.flags, remote=span.is_entry)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, span.flags),
        parent=parent,
        resource=span.resource,
        attributes=span.attributes,
        links=[
            SdkLink(_context(link.trace_id, link.span_id, link.flags, remote=True), link.attributes)
            for link in span.links
        ],
        kind=SpanKind.SERVER if span.is_entry else SpanKind.INTERNAL,
        status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.begin_ns,
        end_time=span.end_ns,
        instrumentation_scope=SCOPE,
    )


def _context(trace_id: int, span_id: int, flags: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=remote, trace_flags=TraceFlags(flags))
