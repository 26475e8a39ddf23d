"""Clients that may not, that never finish, or that are too many: they wait for themselves, the others are served."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.conformance.conftest import CollectorFactory
from tests.conformance.h2 import H2Connection
from tests.conformance.running import MIB, OtlpCollector, unique
from tests.conformance.sending import JSON, PROTOBUF, Grpc, Http
from tests.conformance.signals import LOGS, TRACES, Signal
from tests.support.otlp_endpoints import self_signed

SLOW_S = 25.0
"""The collector gives a request 10 seconds; a machine that is busy gives it more."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtlpCollector]:
    """A collector with two tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text("# who may send\nalpha-token-0123456789\nbeta-token-0123456789\n")
    running = OtlpCollector(folder / "data", "--batch-seconds", "0.05", "--tokens-file", str(folder / "tokens"))
    running.token = "alpha-token-0123456789"
    with running:
        yield running


WRONG: tuple[dict[str, str], ...] = (
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": "Basic YTpi"},
    {"authorization": "alpha-token-0123456789"},
    {"authorization": "Bearer alpha-token-0123456789 extra"},
    {"authorization": "Bearer "},
)


def test_clients_without_a_known_token_are_refused(guarded: OtlpCollector, signal: Signal) -> None:
    """UNAUTHENTICATED or 401 on each port, for good, and nothing is stored."""
    service = unique("stranger")
    for name in ("grpc", "http/protobuf", "http/json"):
        transport = guarded.transport(name)
        for headers in WRONG:
            reply = transport.send(signal, transport.encode(signal.message(service)), headers=headers)
            assert str(reply.code) in ("StatusCode.UNAUTHENTICATED", "401"), headers
            assert not reply.retryable
        transport.close()
    guarded_sender = Grpc(guarded.otlp_port)
    known = {"authorization": "Bearer beta-token-0123456789"}
    assert guarded_sender.send(signal, signal.message(f"{service}-after").SerializeToString(), headers=known).ok
    assert guarded.stored(signal, f"{service}-after", 1) == 1
    assert guarded.stored(signal, service, 0) == 0
    guarded_sender.close()


def test_a_stranger_cannot_make_the_collector_read_much(guarded: OtlpCollector) -> None:
    """Bodies of 60 MiB without a token are refused without being kept in memory."""
    before = guarded.forget_peak()
    for _ in range(3):
        transport = Http(guarded.otlp_http_port, PROTOBUF)
        assert transport.send(TRACES, b"\x0a" * (60 * MIB)).code == 401
        transport.close()
    assert guarded.peak_bytes() - before < 60 * MIB


# --- slow and too many ----------------------------------------------------------------------------------------------


def http_socket(port: int, start: bytes) -> socket.socket:
    """Open a connection and send the beginning of a request."""
    found = socket.create_connection(("127.0.0.1", port), timeout=5)
    found.sendall(start)
    return found


def is_closed(found: socket.socket) -> bool:
    """Whether the other side closed a connection."""
    found.setblocking(False)
    try:
        while data := found.recv(65536):
            del data
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True


def test_slow_clients_are_cut_off_and_delay_nobody(start_collector: CollectorFactory) -> None:
    """Clients that send headers, body or an HTTP/2 call byte by byte, or nothing, are cut off; others are served."""
    running = start_collector("--batch-seconds", "0.05")
    head = f"POST {TRACES.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 1000\r\n"
    before = running.forget_peak()
    dripping = [http_socket(running.otlp_http_port, head.encode()) for _ in range(40)]
    dripping += [http_socket(running.otlp_http_port, f"{head}\r\n".encode()) for _ in range(40)]
    silent = [http_socket(running.otlp_http_port, b"") for _ in range(40)]
    calls = [H2Connection(running.otlp_port) for _ in range(40)]
    for call in calls:
        call.open_call(TRACES.method)
        call.send_data(b"\0\0\0\x03")
    preface_only = [http_socket(running.otlp_port, b"PRI * HTTP/2.0\r\n") for _ in range(20)]
    service, sent, slowest = unique("quick"), 0, 0.0
    senders = [Grpc(running.otlp_port), Http(running.otlp_http_port, PROTOBUF), Http(running.otlp_http_port, JSON)]
    deadline = time.monotonic() + SLOW_S
    open_ones = [*dripping, *silent, *preface_only]
    while time.monotonic() < deadline and open_ones:
        for found in dripping:
            with contextlib.suppress(OSError):
                found.send(b"x")
        for sender in senders:
            begin = time.monotonic()
            assert sender.send(TRACES, sender.encode(TRACES.message(service))).ok
            slowest, sent = max(slowest, time.monotonic() - begin), sent + 1
        open_ones = [found for found in open_ones if not is_closed(found)]
        time.sleep(0.5)
    for found in (*dripping, *silent, *preface_only):
        found.close()
    assert not open_ones, f"{len(open_ones)} slow connections are still open"
    for call in calls:
        call.socket.settimeout(SLOW_S)
        call.wait()
        call.close()
    assert slowest < 3
    assert running.stored(TRACES, service, sent) == sent
    assert running.peak_bytes() - before < 100 * MIB
    for sender in senders:
        sender.close()


def test_more_connections_than_allowed(start_collector: CollectorFactory) -> None:
    """Beyond `--max-connections` a port takes no more; those that are open go on, and room is given to others later."""
    running = start_collector("--batch-seconds", "0.05", "--max-connections", "20")
    first = Http(running.otlp_http_port, PROTOBUF)
    service = unique("first")
    assert first.send(TRACES, TRACES.message(service).SerializeToString()).ok
    crowd = [http_socket(running.otlp_http_port, b"") for _ in range(60)]
    time.sleep(0.5)
    assert first.send(TRACES, TRACES.message(service).SerializeToString()).ok
    assert sum(is_closed(found) for found in crowd) >= 40
    for found in crowd:
        found.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        late = Http(running.otlp_http_port, PROTOBUF)
        try:
            assert late.send(TRACES, TRACES.message(service).SerializeToString()).ok
            break
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
        finally:
            late.close()
    assert running.stored(TRACES, service, 3) == 3
    first.close()


def test_noise_instead_of_a_protocol(collector: OtlpCollector) -> None:
    """Random bytes, a TLS hello and the other port's protocol close that connection and nothing else."""
    hello = bytes.fromhex("1603010200010001fc0303") + bytes(500)
    http_1, http_2 = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    noises = (hello, b"\xff" * 100_000, http_1, http_2)
    for port in (collector.otlp_port, collector.otlp_http_port):
        for noise in noises:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as found:
                found.sendall(noise)
    service = unique("after")
    for name in ("grpc", "http/protobuf"):
        transport = collector.transport(name)
        assert transport.send(LOGS, transport.encode(LOGS.message(service))).ok
        transport.close()
    assert collector.stored(LOGS, service, 2) == 2


# --- TLS ------------------------------------------------------------------------------------------------------------


def test_mutual_tls_keeps_strangers_out(start_collector: CollectorFactory, tmp_path: Path) -> None:
    """With a client CA only clients with its certificate get in, over gRPC and HTTP, with either encoding."""
    own = self_signed(tmp_path)
    files = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--tls-client-ca", str(own.certificate))
    running = start_collector("--batch-seconds", "0.05", *files)
    service = unique("mutual")
    root, chain, key = own.certificate.read_bytes(), own.certificate.read_bytes(), own.key.read_bytes()
    known = grpc.ssl_channel_credentials(root, key, chain)
    stranger = grpc.ssl_channel_credentials(root)
    for credentials, expected in ((known, True), (stranger, False)):
        with grpc.secure_channel(f"localhost:{running.otlp_port}", credentials) as channel:
            call = channel.unary_unary(TRACES.method)
            try:
                call(TRACES.message(service).SerializeToString(), timeout=10)
                answered = True
            except grpc.RpcError:
                answered = False
        assert answered is expected
    context = ssl.create_default_context(cafile=str(own.certificate))
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        post_tls(running, context, service)
    context.load_cert_chain(str(own.certificate), str(own.key))
    assert post_tls(running, context, service) == 200
    assert running.stored(TRACES, service, 2) == 2


def post_tls(running: OtlpCollector, context: ssl.SSLContext, service: str) -> int:
    """Send a span over HTTPS."""
    connection = http.client.HTTPSConnection("localhost", running.otlp_http_port, context=context, timeout=10)
    try:
        connection.request("POST", TRACES.path, TRACES.message(service).SerializeToString(), {"Content-Type": PROTOBUF})
        return connection.getresponse().status
    finally:
        connection.close()


def test_health_needs_no_token_and_tells_nothing(guarded: OtlpCollector) -> None:
    """`/healthz` and `/readyz` of the OTLP/HTTP port answer everybody, and hold nothing but the state."""
    connection = http.client.HTTPConnection("127.0.0.1", guarded.otlp_http_port, timeout=10)
    for path in ("/healthz", "/readyz"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        assert len(answer.read()) < 100
    connection.close()
