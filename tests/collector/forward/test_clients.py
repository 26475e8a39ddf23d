"""One try to send a request, against real receivers, good and bad."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tailspan.errors import UserError
from tailspan_collector.forward import from_table
from tailspan_collector.forward.client import Client, open_client
from tailspan_collector.forward.outcome import Failed, Refused, Taken
from tailspan_collector.signals import LOGS, METRICS, SIGNALS, TRACES, Signal
from tests.support.destinations import GrpcDestination, HttpDestination
from tests.support.otlp_endpoints import Certificate, self_signed
from tests.support.otlp_messages import request_with_stages

Destination = type[GrpcDestination] | type[HttpDestination]
BOTH = pytest.mark.parametrize("kind", [GrpcDestination, HttpDestination])


@contextmanager
def client(endpoint: str, signal: Signal = TRACES, **table: Any) -> Iterator[Client]:
    """Open the client of a destination."""
    opened = open_client(from_table({"endpoint": endpoint, "signals": [signal.name], **table}), signal)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def server_certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for localhost."""
    return self_signed(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def client_certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate that its own authority signed, for mutual TLS."""
    return self_signed(tmp_path_factory.mktemp("client"))


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections with a function of the socket; it may leave early or never write."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            answer(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_sockets:
            connection.close()
        thread.join()


@BOTH
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_the_bytes_arrive_as_they_are(kind: Destination, compression: str, signal: Signal) -> None:
    """Each signal goes to its own place with the headers, and what arrives is what was sent, byte for byte."""
    payload = os.urandom(100_000)
    with kind() as receiver, client(receiver.url, signal, headers={"x-key": "k"}, compression=compression) as sender:
        assert sender.send(payload) == Taken()
        assert receiver.inbox.taken == [payload]
        assert receiver.inbox.headers[0]["x-key"] == "k"
        assert receiver.inbox.targets == [f"/{signal.service}/Export" if kind is GrpcDestination else signal.path]


def test_http_bodies_are_gzipped_and_typed() -> None:
    """OTLP/HTTP requests say what they are; a path in the endpoint comes before `/v1/…`, and is not doubled."""
    payload = request_with_stages(50)
    with HttpDestination() as receiver:
        for path in ("/otlp", "/otlp/", "/otlp/v1/traces"):
            with client(receiver.url + path) as sender:
                assert sender.send(payload) == Taken()
        headers = receiver.inbox.headers[0]
        assert receiver.inbox.targets == ["/otlp/v1/traces"] * 3
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["content-encoding"] == "gzip"
    assert int(headers["content-length"]) < len(payload) / 2


@BOTH
def test_tls_is_verified_and_the_client_shows_its_certificate(
    kind: Destination, server_certificate: Certificate, client_certificate: Certificate
) -> None:
    """With the authority and a client certificate requests get through; without either they fail and are kept."""
    ca = {"ca": str(server_certificate.certificate)}
    me = {"certificate": str(client_certificate.certificate), "key": str(client_certificate.key)}
    with kind(tls=server_certificate, client_ca=client_certificate) as receiver:
        for tls, is_taken in ((ca | me, True), (ca, False), (me, False)):
            with client(receiver.url, tls=tls, timeout=5) as sender:
                outcome = sender.send(b"")
                assert isinstance(outcome, Taken if is_taken else Failed), (tls, outcome)


def test_unusable_certificates_are_an_error_at_the_start(tmp_path: Path) -> None:
    """A file that holds no certificate is told to the user, not found out by the first request."""
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(UserError, match="'tls' cannot be used"), client("https://h", tls={"ca": f"{tmp_path}/ca.pem"}):
        pass


@BOTH
def test_nobody_listens(kind: Destination) -> None:
    """A refused connection is a clear failure, and the next try on the same client works once someone listens."""
    with kind() as receiver:
        url, port = receiver.url, receiver.port
    with client(url, timeout=5) as sender:
        outcome = sender.send(b"")
        assert isinstance(outcome, Failed)
        assert outcome.is_clear
        with kind(port=port) as receiver:
            deadline = time.monotonic() + 15
            while not isinstance(sender.send(b"x"), Taken):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert b"x" in receiver.inbox.taken


@BOTH
def test_a_hanging_destination_costs_no_more_than_the_timeout(kind: Destination) -> None:
    """A receiver that takes the connection and never answers is given up after the time-out of one try."""
    with raw_server(lambda _: time.sleep(30)) as address:
        scheme = "grpc" if kind is GrpcDestination else "http"
        with client(f"{scheme}://{address}", timeout=0.5) as sender:
            started = time.monotonic()
            outcome = sender.send(b"x" * 1000)
            assert isinstance(outcome, Failed)
            assert outcome.is_clear
            assert 0.4 < time.monotonic() - started < 3


def test_an_answer_that_trickles_ends_at_the_deadline() -> None:
    """A byte a time never exceeds a socket's own time-out; the try ends at its deadline nonetheless."""

    def trickle(connection: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    with raw_server(trickle) as address, client(f"http://{address}", timeout=0.5) as sender:
        started = time.monotonic()
        assert sender.send(b"") == Failed("timeout", "no answer in 0.5 s", is_clear=True)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "answer", [b"", b"\x00" * 100, b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\n" + b"a" * 99_999]
)
@BOTH
def test_what_is_no_otlp_receiver_is_a_failure(kind: Destination, answer: bytes) -> None:
    """Garbage or an end of the connection instead of an answer keep the request for another try."""

    def garbage(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_RDWR)

    scheme = "grpc" if kind is GrpcDestination else "http"
    with raw_server(garbage) as address, client(f"{scheme}://{address}", timeout=2) as sender:
        assert isinstance(sender.send(b"x"), Failed)


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    """A receiver that sends gigabytes back costs a MiB, and the request counts by its status."""
    sent = 0

    def flood(connection: socket.socket) -> None:
        nonlocal sent
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 100000000000\r\n\r\n")
        while True:
            sent += connection.send(b"\xff" * 65536)

    with raw_server(flood) as address, client(f"http://{address}", timeout=5) as sender:
        outcome = sender.send(b"x")
        assert isinstance(outcome, Failed)
        assert outcome.reason == "http_503"
    assert sent < 64 << 20


def test_redirects_are_not_followed() -> None:
    """A redirect would take the headers, and so the login, elsewhere: it is a failure that is told."""
    with HttpDestination() as other, HttpDestination() as receiver:
        receiver.behave = lambda _: (307, {"Location": f"{other.url}/v1/traces"}, b"")
        with client(receiver.url, headers={"authorization": "Bearer a"}) as sender:
            assert sender.send(b"x") == Failed("http_307")
        assert other.inbox.asked == []


def test_http_connections_are_used_again_and_replaced_when_the_server_closed_them() -> None:
    """Many requests share one connection; one that the server closed meanwhile is replaced without a failure."""
    with HttpDestination() as receiver, client(receiver.url) as sender:
        for _ in range(10):
            assert sender.send(b"x") == Taken()
        assert receiver.connections == 1
        receiver.behave = lambda _: (200, {"Connection": "close"}, b"")
        for _ in range(3):
            assert sender.send(b"x") == Taken()
    hits = 0

    def close_after_answer(connection: socket.socket) -> None:
        nonlocal hits
        hits += 1
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        connection.close()

    with raw_server(close_after_answer) as address, client(f"http://{address}") as sender:
        for _ in range(5):
            assert sender.send(b"x") == Taken()
            time.sleep(0.02)
    assert hits == 5


def test_chunked_answers_are_read() -> None:
    """A response in chunks, as proxies send them, is read whole, and the connection is used again."""
    response = METRICS.response()
    response.partial_success.rejected_data_points = 2
    body = response.SerializeToString()

    def chunked(connection: socket.socket) -> None:
        while connection.recv(65536):
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")

    with raw_server(chunked) as address, client(f"http://{address}", METRICS) as sender:
        assert [sender.send(b"x"), sender.send(b"x")] == [Taken(2), Taken(2)]


def test_grpc_status_and_partial_success_come_through() -> None:
    """A status of the receiver is the outcome; a partial success is told with its count."""
    response = LOGS.response()
    response.partial_success.rejected_log_records = 4
    with GrpcDestination() as receiver, client(receiver.url, LOGS) as sender:
        receiver.behave = lambda *_: response.SerializeToString()
        assert sender.send(b"x") == Taken(4)

        def refuse(_: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no\tid")
            raise AssertionError

        receiver.behave = refuse
        assert sender.send(b"x") == Refused("grpc_invalid_argument", "no id")


@BOTH
def test_closing_ends_tries_that_hang(kind: Destination) -> None:
    """A client that is closed lets go of a try that waits for an answer, so that a collector stops in time."""
    with raw_server(lambda _: time.sleep(60)) as address:
        scheme = "grpc" if kind is GrpcDestination else "http"
        opened = open_client(from_table({"endpoint": f"{scheme}://{address}", "timeout": 60}), TRACES)
        outcomes: list[object] = []
        thread = threading.Thread(target=lambda: outcomes.append(opened.send(b"x")))
        thread.start()
        time.sleep(0.5)
        opened.close()
        thread.join(5)
        assert not thread.is_alive()
        assert isinstance(outcomes[0], Failed)
