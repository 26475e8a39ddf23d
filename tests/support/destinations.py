"""Real OTLP receivers that keep the raw bytes they get and answer as a test tells them."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import grpc

from tailspan_collector.metrics import Metrics
from tests.support.otlp_endpoints import Certificate

GrpcBehaviour = Callable[[bytes, grpc.ServicerContext], bytes]
HttpAnswer = tuple[int, dict[str, str], bytes]
HttpBehaviour = Callable[[bytes], HttpAnswer]


class Inbox:
    """What a receiver took, in order, and all that it was asked."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.taken: list[bytes] = []
        self.asked: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.targets: list[str] = []

    def ask(self, payload: bytes, headers: dict[str, str], target: str) -> None:
        """Note a request, before it is answered."""
        with self._changed:
            self.asked.append(payload)
            self.headers.append(headers)
            self.targets.append(target)
            self._changed.notify_all()

    def take(self, payload: bytes) -> None:
        """Note a request that is about to be answered with success."""
        with self._changed:
            self.taken.append(payload)
            self._changed.notify_all()

    def wait(self, count: int, timeout_s: float = 20.0) -> list[bytes]:
        """Return what was taken once there are so many."""
        return self._wait(self.taken, count, timeout_s)

    def wait_asked(self, count: int, timeout_s: float = 20.0) -> list[bytes]:
        """Return what was asked once there are so many."""
        return self._wait(self.asked, count, timeout_s)

    def _wait(self, found: list[bytes], count: int, timeout_s: float) -> list[bytes]:
        with self._changed:
            done = self._changed.wait_for(lambda: len(found) >= count, timeout_s)
            assert done, f"{len(found)} requests of {count} after {timeout_s} s"
            return list(found)


def accept(payload: bytes, context: grpc.ServicerContext) -> bytes:
    """Answer with an empty response: full success."""
    return b""


class GrpcDestination(grpc.GenericRpcHandler):  # type: ignore[misc]
    """OTLP/gRPC of every signal; `behave` returns the response or aborts."""

    def __init__(
        self,
        behave: GrpcBehaviour = accept,
        port: int = 0,
        tls: Certificate | None = None,
        client_ca: Certificate | None = None,
    ) -> None:
        self.inbox = Inbox()
        self.behave = behave
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", -1)])
        self._server.add_generic_rpc_handlers((self,))
        if tls is None:
            self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        else:
            pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
            root = client_ca.certificate.read_bytes() if client_ca else None
            credentials = grpc.ssl_server_credentials([pair], root, require_client_auth=root is not None)
            self.port = self._server.add_secure_port(f"127.0.0.1:{port}", credentials)
        self.url = f"{'grpc' if tls is None else 'grpcs'}://localhost:{self.port}"

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Take every method with bytes in and out."""
        headers = {key: str(value) for key, value in details.invocation_metadata}

        def answer(payload: bytes, context: grpc.ServicerContext) -> bytes:
            self.inbox.ask(payload, headers, details.method)
            body = self.behave(payload, context)
            self.inbox.take(payload)
            return body

        return grpc.unary_unary_rpc_method_handler(answer)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def ok(payload: bytes) -> HttpAnswer:
    """Answer with an empty body: full success."""
    return 200, {}, b""


class HttpDestination:
    """OTLP/HTTP; `behave` gets the body as it was before compression."""

    def __init__(
        self,
        behave: HttpBehaviour = ok,
        port: int = 0,
        tls: Certificate | None = None,
        client_ca: Certificate | None = None,
    ) -> None:
        self.inbox = Inbox()
        self.behave = behave
        self.connections = 0
        destination = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                destination.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {key.lower(): value for key, value in self.headers.items()}
                payload = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
                destination.inbox.ask(payload, headers, self.path)
                status, extra, text = destination.behave(payload)
                if status == 200:
                    destination.inbox.take(payload)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text)), **extra}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that gave up
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            if client_ca is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(client_ca.certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it does not hold after {timeout_s} s"
        time.sleep(0.02)


def count(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the value of a metric of the collector, 0 if there is none."""
    return metrics.registry.get_sample_value(f"tailspan_collector_{name}", labels) or 0.0
