"""Rebuilds wanted traces as OTLP requests from their rows.

In: rows of `rows.select_spans` with every String as bytes. Out: export requests of about `REQUEST_BYTES`; spans of one
resource and scope lie together in a request again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tailspan_schemas.rows import to_otlp

REQUEST_BYTES = 2 << 20
"""Half of what gRPC servers take unless they are told otherwise."""


def requests(rows: Iterable[Mapping[str, Any]], edit: Callable[[Span], None]) -> Iterator[bytes]:
    """Yield serialized requests; `edit` sees every span first."""
    builder = _Builder()
    for row in rows:
        message = to_otlp(row)
        edit(message.scope_spans[0].spans[0])
        builder.add(message)
        if builder.size >= REQUEST_BYTES:
            yield builder.take()
    if builder.size:
        yield builder.take()


class _Builder:
    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._request = ExportTraceServiceRequest()
        self._resources: dict[bytes, ResourceSpans] = {}
        self._scopes: dict[tuple[bytes, bytes], ScopeSpans] = {}
        self.size = 0

    def add(self, message: ResourceSpans) -> None:
        """Add a message of one span."""
        single = ScopeSpans()
        single.CopyFrom(message.scope_spans[0])
        span = single.spans[0].SerializeToString()
        del message.scope_spans[:], single.spans[:]
        resource_key = message.SerializeToString(deterministic=True)
        scope_key = (resource_key, single.SerializeToString(deterministic=True))
        resource = self._resources.get(resource_key)
        if resource is None:
            resource = self._resources[resource_key] = self._request.resource_spans.add()
            resource.CopyFrom(message)
            self.size += len(resource_key)
        scope = self._scopes.get(scope_key)
        if scope is None:
            scope = self._scopes[scope_key] = resource.scope_spans.add()
            scope.CopyFrom(single)
            self.size += len(scope_key[1])
        scope.spans.add().MergeFromString(span)
        self.size += len(span) + 4  # tag and length

    def take(self) -> bytes:
        """Return the request and begin a new one."""
        body: bytes = self._request.SerializeToString()
        self._reset()
        return body
