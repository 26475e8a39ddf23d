"""The exporters of the OpenTelemetry SDK deliver all three signals, over both transports, to a real spool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers.grpc import GrpcReceiver
from tailspan_collector.receivers.http import HttpReceiver
from tailspan_collector.receivers.settings import ReceiverSettings
from tailspan_collector.signals import LOGS, METRICS, SIGNALS, TRACES
from tailspan_collector.spool import Spool
from tests.collector.receivers.receiving import Authority

TOKEN = "a-token-of-many-letters"
COUNT = 20
TRANSPORTS = ["grpc", "http"]
PATHS: dict[Any, str] = {HttpSpans: TRACES.path, HttpMetrics: METRICS.path, HttpLogs: LOGS.path}


class Running:
    """Receivers with TLS and tokens on spools."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.root = self.authority.root_file()
        tokens = folder / "tokens"
        tokens.write_text(TOKEN)
        metrics = Metrics()
        self.spools = {s.name: Spool(folder / s.name, s, 1 << 30, 3600, metrics) for s in SIGNALS}
        settings = ReceiverSettings(grpc_port=0, http_port=0, tls=self.authority.tls(), tokens_file=tokens)
        self.grpc = GrpcReceiver(settings, self.spools, metrics)
        self.http = HttpReceiver(settings, self.spools, metrics)
        self.grpc.start()
        self.http.start()

    def stored(self, name: str) -> list[bytes]:
        """Return the requests in a spool."""
        batch = self.spools[name].freeze(1 << 30)
        return [] if batch is None else [batch.received(record).payload for record in batch.records]

    def exporter(self, kind: Callable[..., Any]) -> Any:
        """Make one of the SDK's exporters, with TLS, token and compression."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        if kind in PATHS:
            endpoint = f"https://127.0.0.1:{self.http.port}{PATHS[kind]}"
            return kind(
                endpoint=endpoint, certificate_file=str(self.root), headers=headers, compression=Compression.Gzip
            )
        credentials = grpc.ssl_channel_credentials(self.root.read_bytes())
        endpoint = f"https://127.0.0.1:{self.grpc.port}"
        return kind(endpoint=endpoint, credentials=credentials, headers=headers, compression=grpc.Compression.Gzip)

    def stop(self) -> None:
        """Stop all."""
        self.grpc.stop(1)
        self.http.stop(1)
        for spool in self.spools.values():
            spool.close()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Receivers with TLS and tokens on spools."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # requests prefers them to the exporter's own file
        monkeypatch.delenv(name, raising=False)
    item = Running(tmp_path)
    yield item
    item.stop()


@pytest.mark.parametrize("kind", [GrpcSpans, HttpSpans], ids=TRANSPORTS)
def test_spans_arrive(running: Running, kind: Callable[..., Any]) -> None:
    """Every span that the SDK ended is in the spool, once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(running.exporter(kind)))
    sent = set()
    for index in range(COUNT):
        with provider.get_tracer("test").start_as_current_span(f"span {index}") as span:
            sent.add(span.get_span_context().span_id.to_bytes(8, "big"))
    provider.shutdown()
    spans = [
        span.span_id
        for payload in running.stored("traces")
        for resource in TRACES.request.FromString(payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len(spans) == COUNT
    assert set(spans) == sent


@pytest.mark.parametrize("kind", [GrpcMetrics, HttpMetrics], ids=TRANSPORTS)
def test_metrics_arrive(running: Running, kind: Callable[..., Any]) -> None:
    """What the SDK measured is in the spool."""
    provider = MeterProvider([PeriodicExportingMetricReader(running.exporter(kind), 3_600_000)])
    provider.get_meter("test").create_counter("requests").add(COUNT)
    assert provider.force_flush()
    provider.shutdown()
    message = METRICS.request.FromString(running.stored("metrics")[0])
    metric = message.resource_metrics[0].scope_metrics[0].metrics[0]
    assert (metric.name, metric.sum.data_points[0].as_int) == ("requests", COUNT)


@pytest.mark.parametrize("kind", [GrpcLogs, HttpLogs], ids=TRANSPORTS)
def test_logs_arrive(running: Running, kind: Callable[..., Any]) -> None:
    """Every record that was logged is in the spool."""
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(running.exporter(kind)))
    for index in range(COUNT):
        provider.get_logger("test").emit(LogRecord(body=f"record {index}", severity_number=SeverityNumber.WARN))
    provider.shutdown()
    bodies = [
        record.body.string_value
        for payload in running.stored("logs")
        for resource in LOGS.request.FromString(payload).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    assert bodies == [f"record {index}" for index in range(COUNT)]
