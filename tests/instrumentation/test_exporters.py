"""The standard exporters as the agent uses them: protocols, TLS, compression, headers, and endpoints that misbehave."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from tailspan.agent import outbox as outbox_module
from tailspan.agent.counters import of_outboxes
from tailspan.agent.exporters import exporters
from tailspan.agent.ledger import ledger
from tailspan.agent.outbox import Outbox
from tailspan.agent.pipeline import Pipeline
from tailspan.agent.reporting import ReportingSpanExporter
from tailspan.agent.span import Span
from tailspan.agent.spans import SpanBuilder
from tests.support.finished import finished
from tests.support.otlp_endpoints import Certificate, GrpcEndpoint, HttpEndpoint, self_signed

Endpoint = GrpcEndpoint | HttpEndpoint
KINDS: dict[str, Callable[..., Any]] = {"grpc": GrpcEndpoint, "http/protobuf": HttpEndpoint}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate for this host."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def spans_of(count: int = 1) -> list[Span]:
    """Return the spans of so many requests, 8 each."""
    builder = SpanBuilder(Resource({"service.name": "svc"}), time.time_ns())
    accounts = [ledger(finished()) for _ in range(count)]
    return [span for account in accounts if account is not None for span in builder.request(account)]


def export(exporter: ReportingSpanExporter, count: int = 1) -> SpanExportResult:
    """Export the spans of so many requests, as an outbox does."""
    return exporter.export([exporter.prepare(span) for span in spans_of(count)])


def send_both(count: int = 1) -> None:
    """Export requests as spans and metrics by whatever the environment says."""
    (exporter,) = exporters()
    assert export(exporter, count) is SpanExportResult.SUCCESS
    exporter.shutdown()
    line = Pipeline(SpanBuilder(Resource({"service.name": "svc"}), 0), [])
    line.emit([finished()], [])
    line.close()


def configure(monkeypatch: pytest.MonkeyPatch, protocol: str, endpoint: str, **more: str) -> None:
    """Set the standard variables for both signals."""
    variables = {"PROTOCOL": protocol, "ENDPOINT": endpoint, **more}
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")


@pytest.mark.parametrize("protocol", list(KINDS))
def test_traces_and_metrics_arrive_with_the_headers_asked_for(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """One base endpoint serves both signals; headers of a signal replace the common ones."""
    with KINDS[protocol]() as endpoint:
        configure(monkeypatch, protocol, endpoint.endpoint, HEADERS="x-key=all", METRICS_HEADERS="x-key=m%20s")
        send_both()
        assert len(endpoint.received.spans) == 8
        assert "gen_ai.server.request.duration" in endpoint.received.latest
        assert [headers["x-key"] for headers in endpoint.received.headers] == ["all", "m s"]


@pytest.mark.parametrize("protocol", list(KINDS))
def test_tls_with_a_private_authority(monkeypatch: pytest.MonkeyPatch, certificate: Certificate, protocol: str) -> None:
    """OTEL_EXPORTER_OTLP_CERTIFICATE is trusted for both signals; without it nothing is sent."""
    with KINDS[protocol](certificate) as endpoint:
        configure(monkeypatch, protocol, endpoint.endpoint, TIMEOUT="1")
        (distrusting,) = exporters()
        assert export(distrusting) is SpanExportResult.FAILURE
        distrusting.shutdown()
        assert not endpoint.received.spans
        configure(monkeypatch, protocol, endpoint.endpoint, CERTIFICATE=str(certificate.certificate), TIMEOUT="10")
        send_both()
        assert len(endpoint.received.spans) == 8
        assert endpoint.received.latest


@contextmanager
def counting_proxy(port: int) -> Iterator[tuple[int, list[int]]]:
    """Yield a port that passes everything on to another, and the sizes of what clients sent through it."""
    sizes: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket, sizes: list[int]) -> None:
        try:
            while data := source.recv(65536):
                sizes.append(len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def serve() -> None:
        try:
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                opened.extend((client, server))
                threading.Thread(target=pump, args=(client, server, sizes), daemon=True).start()
                threading.Thread(target=pump, args=(server, client, []), daemon=True).start()
        except OSError:
            return

    opened: list[socket.socket] = [listener]
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], sizes
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        for each in opened:
            each.close()
        thread.join(5)


@pytest.mark.parametrize("protocol", list(KINDS))
def test_gzip_makes_fewer_bytes_of_the_same_spans(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """Counted on the wire: 1,600 spans need less than a third, and arrive whole."""
    sent = {}
    for compression in ("none", "gzip"):
        with KINDS[protocol]() as endpoint, counting_proxy(endpoint.port) as (port, sizes):
            configure(monkeypatch, protocol, f"http://127.0.0.1:{port}", COMPRESSION=compression)
            send_both(200)
            assert len(endpoint.received.spans) == 1600
            sent[compression] = sum(sizes)
    assert sent["gzip"] < sent["none"] / 3


@pytest.mark.parametrize("protocol", list(KINDS))
def test_an_endpoint_that_hangs_costs_no_more_than_the_timeout(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """The export fails after OTEL_EXPORTER_OTLP_TIMEOUT instead of waiting for ever."""
    gate = threading.Event()
    options: dict[str, Any] = {"behave": lambda _: gate.wait(20)} if protocol == "grpc" else {"answer": (200, b"", 20)}
    with KINDS[protocol](**options) as endpoint:
        configure(monkeypatch, protocol, endpoint.endpoint, TIMEOUT="1")
        (exporter,) = exporters()
        begun = time.monotonic()
        assert export(exporter) is SpanExportResult.FAILURE
        assert 0.8 < time.monotonic() - begun < 5
        assert (exporter.failures, exporter.refused) == (1, False)
        exporter.shutdown()
        gate.set()


def abort(code: grpc.StatusCode) -> Callable[[Any], None]:
    """Return a behaviour that refuses with a code."""
    return lambda context: context.abort(code, "no")


@pytest.mark.parametrize(
    ("protocol", "options", "refused"),
    [
        ("grpc", {"behave": abort(grpc.StatusCode.INVALID_ARGUMENT)}, True),
        ("grpc", {"behave": abort(grpc.StatusCode.UNAUTHENTICATED)}, False),
        ("grpc", {"behave": abort(grpc.StatusCode.UNAVAILABLE)}, False),
        ("http/protobuf", {"answer": (400, b"bad", 0.0)}, True),
        ("http/protobuf", {"answer": (413, b"big", 0.0)}, True),
        ("http/protobuf", {"answer": (404, b"where", 0.0)}, False),
        ("http/protobuf", {"answer": (503, b"later", 0.0)}, False),
    ],
)
def test_data_that_is_refused_differs_from_an_endpoint_in_trouble(
    monkeypatch: pytest.MonkeyPatch, protocol: str, options: dict[str, Any], refused: bool
) -> None:
    """Only a verdict on the data themselves says that sending them again cannot help."""
    with KINDS[protocol](**options) as endpoint:
        configure(monkeypatch, protocol, endpoint.endpoint, TIMEOUT="1")
        (exporter,) = exporters()
        assert export(exporter) is SpanExportResult.FAILURE
        assert exporter.refused is refused
        exporter.shutdown()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the agent itself logged; pytest listens to loggers that do not propagate as well."""
    return [record.message for record in caplog.records if record.name == "tailspan.agent"]


def test_what_repeats_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Four failures are one line with the exporter's reason, the recovery is another, and the counter knows all."""
    failing = threading.Event()
    failing.set()

    def behave(context: Any) -> None:
        if failing.is_set():
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "who are you")

    caplog.set_level(logging.INFO)
    with GrpcEndpoint(behave=behave) as endpoint:
        configure(monkeypatch, "grpc", endpoint.endpoint)
        (exporter,) = exporters()
        results = [export(exporter) for _ in range(4)]
        failing.clear()
        results += [export(exporter) for _ in range(2)]
        exporter.shutdown()
    assert [result is SpanExportResult.SUCCESS for result in results] == [False] * 4 + [True] * 2
    assert exporter.failures == 4
    warning, recovery = said(caplog)
    assert warning.startswith("exporting spans to OTLP/gRPC fails and is tried again: ")
    assert "PERMISSION_DENIED" in warning
    assert "who are you" in warning
    assert recovery == "exporting spans to OTLP/gRPC works again"


def test_metrics_that_no_one_takes_are_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector of traces answers UNIMPLEMENTED to metrics; spans go on, and the log says it once."""
    with GrpcEndpoint(metrics=False) as endpoint:
        configure(monkeypatch, "grpc", endpoint.endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        line = Pipeline(SpanBuilder(Resource({}), 0), [])
        line.emit([finished()], [])
        time.sleep(0.6)
        line.close()
    (message,) = said(caplog)
    assert "exporting metrics to OTLP/gRPC fails" in message
    assert "UNIMPLEMENTED" in message


def test_memory_is_bounded_while_an_endpoint_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue stays at its limit, what does not fit is counted, and failures are."""
    monkeypatch.setattr(outbox_module, "QUEUE_SPANS", 100)
    monkeypatch.setattr(outbox_module, "RETRY_S", (0.01,))
    with GrpcEndpoint(behave=abort(grpc.StatusCode.UNAUTHENTICATED)) as endpoint:
        configure(monkeypatch, "grpc", endpoint.endpoint)
        (exporter,) = exporters()
        box = Outbox(exporter)
        for _ in range(50):
            box.put(spans_of())
        deadline = time.monotonic() + 10
        while exporter.failures < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(box._queue) == 100
        counters = of_outboxes([box])
        assert (counters.spans_exported, counters.spans_dropped) == (0, 300)
        assert counters.export_failures >= 3
        assert box.close(0.1) is False


def test_metrics_can_go_elsewhere_by_another_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting of a signal wins over the common one."""
    with GrpcEndpoint() as traces, HttpEndpoint() as metrics:
        configure(monkeypatch, "grpc", traces.endpoint, METRICS_PROTOCOL="http/protobuf",
                  METRICS_ENDPOINT=f"{metrics.endpoint}/v1/metrics")  # fmt: skip
        send_both()
        assert (len(traces.received.traces), len(traces.received.metrics)) == (1, 0)
        assert (len(metrics.received.traces), len(metrics.received.metrics)) == (0, 1)
