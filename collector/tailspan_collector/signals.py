"""The three OTLP signals: where each is received, how ClickHouse decodes it, and which table takes it.

Source: opentelemetry-proto, `opentelemetry/proto/collector/*/v1/*_service.proto` and `docs/specification.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tailspan_schemas.migrations import PROTO_FOLDER


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal; compared and hashed by its name alone where it is a key."""

    name: str
    """`traces`, `metrics` or `logs`; also the folder of its spool and the label of its metrics."""
    service: str
    """Full name of the gRPC service; its one method is `Export`."""
    path: str
    """Path of OTLP/HTTP."""
    request: type[Any]
    """Protobuf class of an export request; used for JSON and to examine what ClickHouse refused."""
    response: type[Any]
    """Protobuf class of its response."""
    rejected_field: str
    """Field of `partial_success` that counts what was refused."""
    table: str
    """Table of engine Null that takes export requests."""
    proto_file: Path
    """Protobuf schema by which ClickHouse decodes them."""
    proto_message: str


TRACES = Signal(
    "traces",
    "opentelemetry.proto.collector.trace.v1.TraceService",
    "/v1/traces",
    trace_service_pb2.ExportTraceServiceRequest,
    trace_service_pb2.ExportTraceServiceResponse,
    "rejected_spans",
    "tailspan.otlp_traces",
    PROTO_FOLDER / "otlp_traces.proto",
    "TracesRequest",
)
METRICS = Signal(
    "metrics",
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "/v1/metrics",
    metrics_service_pb2.ExportMetricsServiceRequest,
    metrics_service_pb2.ExportMetricsServiceResponse,
    "rejected_data_points",
    "tailspan.otlp_metrics",
    PROTO_FOLDER / "otlp_metrics.proto",
    "MetricsRequest",
)
LOGS = Signal(
    "logs",
    "opentelemetry.proto.collector.logs.v1.LogsService",
    "/v1/logs",
    logs_service_pb2.ExportLogsServiceRequest,
    logs_service_pb2.ExportLogsServiceResponse,
    "rejected_log_records",
    "tailspan.otlp_logs",
    PROTO_FOLDER / "otlp_logs.proto",
    "LogsRequest",
)
SIGNALS = (TRACES, METRICS, LOGS)
