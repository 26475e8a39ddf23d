"""OTLP exporters for spans and metrics, with two standard settings that the exporters themselves get wrong.

* OTEL_EXPORTER_OTLP_COMPRESSION=none makes the gRPC exporter raise, so the compression is given to it.
* OTEL_EXPORTER_OTLP_CERTIFICATE is ignored by the HTTP exporter wherever REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE is set,
  as in many containers, so that it gets a session which puts the more specific setting first.

Everything else (endpoint, headers, timeout, client certificate, temporality) they read from the environment.
"""

from __future__ import annotations

from typing import Any

import grpc
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from tailspan.agent.settings import otlp_value


def span_exporter(protocol: str) -> SpanExporter:
    """Return the exporter of OTEL_EXPORTER_OTLP_TRACES_* and OTEL_EXPORTER_OTLP_*; protocol grpc or http/protobuf."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(compression=_compression("TRACES"))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(session=_session("TRACES"))


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
