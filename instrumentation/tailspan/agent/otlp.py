"""OTLP exporters for spans and metrics, with two standard settings that the exporters themselves get wrong.

Spans reach them as bytes (`encode`); headers, TLS, compression, timeouts and retries stay theirs. An exporter of an SDK
version in which the place for that is not found gets the SDK's spans, as any other exporter.

* OTEL_EXPORTER_OTLP_COMPRESSION=none makes the gRPC exporter raise, so the compression is given to it.
* OTEL_EXPORTER_OTLP_CERTIFICATE is ignored by the HTTP exporter wherever REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE is set,
  as in many containers, so that it gets a session which puts the more specific setting first.

Everything else (endpoint, headers, timeout, client certificate, temporality) they read from the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tailspan.agent.encode import message, pack
from tailspan.agent.settings import otlp_value
from tailspan.agent.span import Span, readable


def span_exporter(protocol: str) -> SpanExporter:
    """Return the exporter of OTEL_EXPORTER_OTLP_TRACES_* and OTEL_EXPORTER_OTLP_*; protocol grpc or http/protobuf."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return cast("SpanExporter", packed_grpc(GrpcExporter)(compression=_compression("TRACES")))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return cast("SpanExporter", packed_http(HttpExporter)(session=_session("TRACES")))


def packed_grpc(standard: Any) -> Any:
    """Return the gRPC exporter class for packed spans; the standard one where it does not translate in a method."""
    if not hasattr(standard, "_translate_data"):
        return standard

    class PackedGrpcExporter(standard):  # type: ignore[misc]
        resource: Resource

        def prepare(self, span: Span) -> bytes:
            self.resource = span.resource  # that of the worker, so the same for all
            return pack(span)

        def _translate_data(self, data: Sequence[bytes]) -> Any:
            return ExportTraceServiceRequest.FromString(message(self.resource, data))

    return PackedGrpcExporter


def packed_http(standard: Any) -> Any:
    """Return the HTTP exporter class for packed spans; one that has no client for bytes still takes the SDK's spans."""

    class PackedHttpExporter(standard):  # type: ignore[misc]
        resource: Resource

        def prepare(self, span: Span) -> bytes | ReadableSpan:
            self.resource = span.resource
            return readable(span) if self._send() is None else pack(span)

        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            send = self._send()
            if send is None:
                return cast("SpanExportResult", super().export(spans))
            done = not getattr(self, "_shutdown", False) and send(message(self.resource, spans)).success
            return SpanExportResult.SUCCESS if done else SpanExportResult.FAILURE

        def _send(self) -> Callable[[bytes], Any] | None:
            return getattr(getattr(self, "_client", None), "export", None)

    return PackedHttpExporter


def metric_exporter(protocol: str) -> MetricExporter:
    """The same for metrics."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        return GrpcExporter(compression=_compression("METRICS"))
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter(session=_session("METRICS"))


def _compression(signal: str) -> grpc.Compression:
    name = otlp_value(signal, "COMPRESSION").lower()
    return {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}.get(
        name, grpc.Compression.NoCompression
    )


def _session(signal: str) -> Any:
    """Return a session that trusts the given certificate whatever else the environment says; None for the default."""
    certificate = otlp_value(signal, "CERTIFICATE")
    if not certificate:
        return None
    import requests

    class Session(requests.Session):
        def merge_environment_settings(self, *args: Any, **kwargs: Any) -> Any:
            return {**super().merge_environment_settings(*args, **kwargs), "verify": certificate}

    return Session()
