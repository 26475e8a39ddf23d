"""The three signals as the specification names them, written down a second time so that a mistake is seen.

Source: opentelemetry-proto, `docs/specification.md` and the `*_service.proto` files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.otlp_messages import string

SERVICE = "service.name"


@dataclass(frozen=True, slots=True)
class Signal:
    """Where a signal is sent, what the request and its answer are, and how many items of a service are stored."""

    name: str
    method: str
    path: str
    request: type[Any]
    response: type[Any]
    fill: Callable[[Any, int, str], None]
    """Add that many items with that name to a message."""
    count_sql: str
    """Number of items of the service `{service:String}`."""

    def message(self, service: str, count: int = 1, name: str = "item") -> Any:
        """Return an export request with `count` items of one service."""
        message = self.request()
        self.fill(message, count, name)
        resource = getattr(message, self.resources)[0].resource
        resource.attributes.append(string(SERVICE, service))
        return message

    @property
    def resources(self) -> str:
        """The one field of the request."""
        field: str = self.request.DESCRIPTOR.fields[0].name
        return field

    def __str__(self) -> str:
        return self.name


def _fill_traces(message: Any, count: int, name: str) -> None:
    spans = message.resource_spans.add().scope_spans.add().spans
    start = time.time_ns()
    for index in range(count):
        span = spans.add(trace_id=os.urandom(16), span_id=os.urandom(8), name=name, kind=2)
        span.start_time_unix_nano, span.end_time_unix_nano = start + index, start + index + 1_000_000


def _fill_metrics(message: Any, count: int, name: str) -> None:
    metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name=name, unit="1")
    for index in range(count):
        metric.gauge.data_points.add(time_unix_nano=time.time_ns(), as_double=float(index))


def _fill_logs(message: Any, count: int, name: str) -> None:
    records = message.resource_logs.add().scope_logs.add().log_records
    for index in range(count):
        record = records.add(time_unix_nano=time.time_ns(), severity_number=9)
        record.body.string_value = f"{name} {index}"


TRACES = Signal(
    "traces",
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "/v1/traces",
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
    _fill_traces,
    "select count() from tailspan.spans where service = {service:String}",
)
METRICS = Signal(
    "metrics",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "/v1/metrics",
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
    _fill_metrics,
    "select count() from tailspan.otel_metrics_gauge where ServiceName = {service:String}",
)
LOGS = Signal(
    "logs",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "/v1/logs",
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
    _fill_logs,
    "select count() from tailspan.otel_logs where ServiceName = {service:String}",
)
SIGNALS = (TRACES, METRICS, LOGS)
