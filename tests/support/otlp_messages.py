"""OTLP messages for tests: small requests, and a form in which messages can be compared."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from tailspan import attributes
from tailspan_collector.framing import write_varint


def request_with_stages(
    requests: int = 1, service: str = "test", stages: tuple[str, ...] = ("queue", "decode")
) -> bytes:
    """Return a serialized export request: `requests` traces of one request span and its stages."""
    message = ExportTraceServiceRequest()
    resource_spans = message.resource_spans.add()
    resource_spans.resource.attributes.append(string(attributes.SERVICE_NAME, service))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = attributes.SCOPE_NAME
    for _ in range(requests):
        trace_id, root, start = os.urandom(16), os.urandom(8), time.time_ns()
        duration = 1_000_000 * len(stages)
        span = scope_spans.spans.add(trace_id=trace_id, span_id=root, name="POST", kind=2)
        span.start_time_unix_nano, span.end_time_unix_nano = start, start + duration
        span.attributes.append(string(attributes.ROLE, attributes.ROLE_REQUEST))
        for index, stage in enumerate(stages):
            child = scope_spans.spans.add(trace_id=trace_id, span_id=os.urandom(8), parent_span_id=root, name=stage)
            child.start_time_unix_nano = start + index * 1_000_000
            child.end_time_unix_nano = child.start_time_unix_nano + 1_000_000
            child.attributes.append(string(attributes.ROLE, attributes.ROLE_STAGE))
            child.attributes.append(string(attributes.STAGE, stage))
    return message.SerializeToString()


def framed(*requests: bytes) -> bytes:
    """Return requests as a stream of ClickHouse's `Protobuf` format, which is what a sink inserts."""
    return b"".join(write_varint(len(request)) + request for request in requests)


def string(key: str, value: str) -> KeyValue:
    """Return a string attribute."""
    return KeyValue(key=key, value=AnyValue(string_value=value))


def single_spans(message: ExportTraceServiceRequest) -> Iterator[ResourceSpans]:
    """Yield every span of a request as a message of its own, with its scope and resource."""
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                single = ResourceSpans(schema_url=resource_spans.schema_url)
                single.resource.CopyFrom(resource_spans.resource)
                copy = single.scope_spans.add(schema_url=scope_spans.schema_url)
                copy.scope.CopyFrom(scope_spans.scope)
                copy.spans.add().CopyFrom(span)
                yield single


def comparable(message: ResourceSpans) -> bytes:
    """Return bytes that are equal for messages with equal fields, whatever the order of attributes."""
    ordered = ResourceSpans()
    ordered.CopyFrom(message)
    ordered.resource.SetInParent()
    _sort(ordered.resource.attributes)
    for scope_spans in ordered.scope_spans:
        scope_spans.scope.SetInParent()
        _sort(scope_spans.scope.attributes)
        for span in scope_spans.spans:
            span.status.SetInParent()
            _sort(span.attributes)
            for part in (*span.events, *span.links):
                _sort(part.attributes)
    return ordered.SerializeToString(deterministic=True)


def _sort(attributes_of: object) -> None:
    items = list(attributes_of)  # type: ignore[call-overload]
    for item in items:
        item.value.SetInParent()
    if len(items) > 1:
        items.sort(key=lambda item: (item.key, item.value.SerializeToString(deterministic=True)))
        del attributes_of[:]  # type: ignore[attr-defined]
        attributes_of.extend(items)  # type: ignore[attr-defined]
