"""A real OTLP/gRPC trace service that keeps what it receives, for tests of what the worker side sends."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpSink(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Listens on loopback while it is used as a context manager."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 (name of the RPC)
        with self._lock:
            self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def __enter__(self) -> OtlpSink:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Span]:
        with self._lock:
            return [
                span
                for request in self.requests
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    @property
    def resource(self) -> dict[str, Any]:
        with self._lock:
            return attributes_of(self.requests[0].resource_spans[0].resource.attributes)

    def wait_for(self, count: int, timeout_s: float = 20.0) -> list[Span]:
        """Return the spans once there are at least `count`."""
        deadline = time.monotonic() + timeout_s
        while len(self.spans) < count:
            assert time.monotonic() < deadline, f"{len(self.spans)} spans of {count} after {timeout_s} s"
            time.sleep(0.02)
        return self.spans


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Return protobuf attributes as a dict of Python values."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


__all__ = ["KeyValue", "OtlpSink", "attributes_of"]
