"""The standard OpenTelemetry span exporters, chosen by the standard variables.

Source: OpenTelemetry specification, "Environment Variable Specification" and "Protocol Exporter".
Errors: an unknown exporter or protocol raises `UserError` that names the variable.
"""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from tailspan import attributes as attr
from tailspan.errors import UserError

_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


def exporters() -> list[SpanExporter]:
    """Return the exporters that OTEL_TRACES_EXPORTER names; `otlp` when it is unset, none when tracing is disabled."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    names = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    return [_exporter(name.strip()) for name in names.split(",") if name.strip() not in ("", "none")]


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter()
    if name in ("otlp", "otlp_proto_grpc", "otlp_proto_http"):
        return _otlp({"otlp_proto_grpc": "grpc", "otlp_proto_http": "http/protobuf"}.get(name))
    raise UserError(f"OTEL_TRACES_EXPORTER={name!r} is not known", "Use otlp, console or none")


def _otlp(protocol: str | None) -> SpanExporter:
    protocol = protocol or os.environ.get(_TRACES_PROTOCOL) or os.environ.get(_PROTOCOL) or "grpc"
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    raise UserError(f"{_PROTOCOL}={protocol!r} is not supported", "Use grpc or http/protobuf")


def resource(default_service: str, instance: str) -> Resource:
    """Return the resource of all spans: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the defaults."""
    found = Resource.create()
    defaults: dict[str, str] = {}
    if str(found.attributes.get(attr.SERVICE_NAME, "")).startswith("unknown_service"):
        defaults[attr.SERVICE_NAME] = default_service
    # The SDK gives every process an id of its own; the instance here is the worker, not the agent beside it.
    configured = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if f"{attr.SERVICE_INSTANCE}=" not in configured:
        defaults[attr.SERVICE_INSTANCE] = instance
    return found.merge(Resource(defaults))
