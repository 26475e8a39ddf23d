"""OTLP endpoints for traces and metrics, over gRPC and HTTP, with TLS, and ones that misbehave."""

from __future__ import annotations

import gzip
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.support.otlp_sink import attributes_of


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for 127.0.0.1 and localhost that is its own authority."""

    certificate: Path
    key: Path


def self_signed(folder: Path) -> Certificate:
    """Make a certificate with the openssl command."""
    certificate, key = folder / "ca.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return Certificate(certificate, key)


@dataclass
class Received:
    """What an endpoint got, in order: messages, and the headers of each call."""

    traces: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, message: Any, headers: dict[str, str]) -> None:
        """Keep a message."""
        with self.lock:
            is_trace = isinstance(message, trace_service_pb2.ExportTraceServiceRequest)
            (self.traces if is_trace else self.metrics).append(message)
            self.headers.append(headers)

    @property
    def spans(self) -> list[Any]:
        with self.lock:
            return [
                span
                for message in self.traces
                for resource in message.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    @property
    def latest(self) -> dict[str, Any]:
        """The metrics of the latest message by name."""
        with self.lock:
            if not self.metrics:
                return {}
            return {
                metric.name: metric
                for resource in self.metrics[-1].resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }

    def wait(self, what: str, count: int = 1, timeout_s: float = 15.0) -> None:
        """Wait for so many messages (`traces`, `metrics`) or `spans`."""
        deadline = time.monotonic() + timeout_s
        while len(getattr(self, what)) < count:
            assert time.monotonic() < deadline, f"{len(getattr(self, what))} {what} of {count} after {timeout_s} s"
            time.sleep(0.02)


def points(metric: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return (attributes, data point) of a metric."""
    data = getattr(metric, metric.WhichOneof("data"))
    return [(attributes_of(point.attributes), point) for point in data.data_points]


class GrpcEndpoint(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Both services on one port. `behave` is called first with the context, and may wait or abort."""

    def __init__(self, tls: Certificate | None = None, behave: Any = None, *, metrics: bool = True) -> None:
        self.received = Received()
        self.calls = 0
        self._behave = behave
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        if metrics:
            metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        if tls is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
            self.port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self.endpoint = f"{'http' if tls is None else 'https'}://localhost:{self.port}"

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 (name of the RPC)
        self.take(request, context)
        return trace_service_pb2.ExportTraceServiceResponse()

    def take(self, request: Any, context: Any) -> None:
        self.calls += 1
        if self._behave is not None:
            self._behave(context)
        self.received.take(request, {key: str(value) for key, value in context.invocation_metadata()})

    def __enter__(self) -> GrpcEndpoint:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):  # type: ignore[misc]
    def __init__(self, endpoint: GrpcEndpoint) -> None:
        self._endpoint = endpoint

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 (name of the RPC)
        self._endpoint.take(request, context)
        return metrics_service_pb2.ExportMetricsServiceResponse()


class HttpEndpoint:
    """OTLP/HTTP with protobuf bodies. `answer` is (status, body, seconds to wait before it)."""

    def __init__(self, tls: Certificate | None = None, answer: tuple[int, bytes, float] = (200, b"", 0.0)) -> None:
        self.received = Received()
        self.calls = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.calls += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, text, wait_s = answer
                if status == 200 and not text:
                    endpoint._take(self.path, body, {key.lower(): value for key, value in self.headers.items()})
                endpoint.stopped.wait(wait_s)
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.stopped = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that gave up
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.endpoint = f"{'http' if tls is None else 'https'}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def _take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        message: Any = {
            "/v1/traces": trace_service_pb2.ExportTraceServiceRequest,
            "/v1/metrics": metrics_service_pb2.ExportMetricsServiceRequest,
        }[path]()
        message.ParseFromString(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
        self.received.take(message, headers)

    def __enter__(self) -> HttpEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
