"""TLS and mutual TLS over both transports, with files that change while the collector runs."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from pathlib import Path

import grpc
import pytest
import trustme

from tailspan.errors import UserError
from tailspan_collector.receivers.settings import Tls
from tailspan_collector.receivers.tls import Certificates
from tailspan_collector.signals import TRACES
from tests.collector.receivers.clients import PROTOBUF
from tests.collector.receivers.receiving import Authority, receiving
from tests.support.otlp_messages import request_with_stages

REQUEST = request_with_stages(1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority that certifies the server."""
    return Authority(tmp_path)


def grpc_export(port: int, root: bytes, client: trustme.LeafCert | None = None) -> bytes:
    """Send a request over gRPC with TLS on a new connection."""
    key, chain = (None, None) if client is None else (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
    credentials = grpc.ssl_channel_credentials(root, key, chain)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        response: bytes = channel.unary_unary(f"/{TRACES.service}/Export")(REQUEST, timeout=5)
        return response


def http_export(port: int, root: bytes, client: Path | None = None, name: str = "127.0.0.1") -> int:
    """Send a request over HTTPS on a new connection."""
    context = ssl.create_default_context(cadata=root.decode())
    if client is not None:
        context.load_cert_chain(client)
    connection = http.client.HTTPSConnection(name, port, context=context, timeout=5)
    try:
        connection.request("POST", "/v1/traces", REQUEST, {"content-type": PROTOBUF})
        return connection.getresponse().status
    finally:
        connection.close()


def test_both_transports_speak_tls(authority: Authority) -> None:
    """With a certificate both ports speak TLS, whether or not the client names the server, and nothing else."""
    with receiving(tls=authority.tls()) as running:
        assert grpc_export(running.grpc.port, authority.root()) == b""
        assert http_export(running.http.port, authority.root()) == 200
        assert http_export(running.http.port, authority.root(), name="localhost") == 200
        with socket.create_connection(("127.0.0.1", running.http.port), 5) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"ok" not in plain.recv(1000)
        with grpc.insecure_channel(f"127.0.0.1:{running.grpc.port}") as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(f"/{TRACES.service}/Export")(REQUEST, timeout=2)
        assert len(running.traces.requests) == 3


def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    """TLS 1.1 and older are not spoken."""
    assert Certificates(authority.tls()).server_context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_certificates_change_without_a_restart(tmp_path: Path) -> None:
    """New connections see a new certificate of another authority; the old authority's clients are then refused."""
    old, new = Authority(tmp_path), Authority(tmp_path)
    with receiving(tls=old.tls()) as running:
        assert grpc_export(running.grpc.port, old.root()) == b""
        assert http_export(running.http.port, old.root()) == 200
        new.tls()
        assert grpc_export(running.grpc.port, new.root()) == b""
        assert http_export(running.http.port, new.root()) == 200
        with pytest.raises(ssl.SSLError):
            http_export(running.http.port, old.root())
        with pytest.raises(grpc.RpcError):
            grpc_export(running.grpc.port, old.root())


def test_half_replaced_files_change_nothing(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """While key and certificate do not fit together, the last good pair is used, and the log says so once."""
    tls = authority.tls()
    with receiving(tls=tls) as running:
        good = tls.key.read_bytes()
        tls.key.write_bytes(authority.ca.issue_cert("127.0.0.1").private_key_pem.bytes())
        for _ in range(2):
            assert grpc_export(running.grpc.port, authority.root()) == b""
            assert http_export(running.http.port, authority.root()) == 200
        assert caplog.text.count("the last good ones stay") == 2  # one for each transport
        tls.key.write_bytes(good)
        assert http_export(running.http.port, authority.root()) == 200


def test_clients_need_a_certificate_in_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    """With a CA for clients, only those it certified are taken; the CA can be replaced without a restart."""
    first, second = trustme.CA(), trustme.CA()
    ca_file = tmp_path / "clients.pem"
    ca_file.write_bytes(first.cert_pem.bytes())
    with receiving(tls=authority.tls(ca_file)) as running:
        for trusted, other in ((first, second), (second, first)):
            ca_file.write_bytes(trusted.cert_pem.bytes())
            good, bad = trusted.issue_cert("client.example"), other.issue_cert("client.example")
            good_file, bad_file = tmp_path / "good.pem", tmp_path / "bad.pem"
            good.private_key_and_cert_chain_pem.write_to_path(good_file)
            bad.private_key_and_cert_chain_pem.write_to_path(bad_file)
            assert grpc_export(running.grpc.port, authority.root(), good) == b""
            assert http_export(running.http.port, authority.root(), good_file) == 200
            for client, file in ((None, None), (bad, bad_file)):
                with pytest.raises(grpc.RpcError):
                    grpc_export(running.grpc.port, authority.root(), client)
                with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                    http_export(running.http.port, authority.root(), file)
        assert len(running.traces.requests) == 4


def test_a_handshake_that_does_not_come_is_given_up(authority: Authority) -> None:
    """A client that connects and says nothing is closed in time on both ports."""
    with receiving(tls=authority.tls(), slow_seconds=0.5) as running:
        for port in (running.grpc.port, running.http.port):
            started = time.monotonic()
            with socket.create_connection(("127.0.0.1", port), 5) as silent:
                assert silent.recv(1) == b""
            assert time.monotonic() - started < 3


def test_useless_files_stop_the_start(authority: Authority, tmp_path: Path) -> None:
    """Files that are absent, no PEM, of different pairs or locked by a password are an error that names them."""
    tls = authority.tls()
    text = tmp_path / "text.pem"
    text.write_text("no PEM")
    other = tmp_path / "other.pem"
    other.write_bytes(authority.ca.issue_cert("127.0.0.1").private_key_pem.bytes())
    for wrong in (
        Tls(tmp_path / "absent.pem", tls.key),
        Tls(tls.cert, text),
        Tls(tls.cert, other),
        Tls(tls.cert, tls.key, text),
    ):
        with pytest.raises(UserError, match=r"TLS files .*\.pem"):
            Certificates(wrong)
