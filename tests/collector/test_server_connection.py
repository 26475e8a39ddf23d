"""How the connection to a ClickHouse server is made: several endpoints, logins, TLS, and a server that is not there."""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tailspan.errors import UserError
from tailspan_collector import server_endpoint
from tailspan_collector.framing import write_varint
from tailspan_collector.server import Server
from tailspan_collector.server_endpoint import ServerConfig, Unusable, parse_endpoints
from tailspan_collector.server_sink import ServerSink
from tailspan_collector.signals import TRACES
from tailspan_schemas import migrations
from tests.support.collector import wait_until
from tests.support.otlp_messages import request_with_stages
from tests.support.server_process import Relay, ServerProcess

Connect = Callable[..., Server]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without login."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Make connections that are closed after the test."""
    made: list[Server] = []

    def make(url: str, **config: object) -> Server:
        made.append(Server(ServerConfig(url, **config)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for server in made:
        server.close()


def test_a_server_that_is_down_is_waited_for(
    tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Starting does not fail; inserts fail with the reason, one line says so, and once it is up it has the schema."""
    process = ServerProcess(tmp_path / "late")
    process.start().stop()
    server = connect(process.url)
    server.start()
    assert wait_until(lambda: server.problem, lambda text: "not reachable" in text, 10)
    with pytest.raises(Unusable, match="is not reachable: Connection refused"):
        _ = server.client

    def errors_told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.levelno == logging.ERROR]

    wait_until(errors_told, bool, 10)
    time.sleep(1.0)  # several more tries
    errors = errors_told()
    assert len(errors) == 1
    assert "what is received stays in the spool" in errors[0].getMessage()
    with process:
        assert wait_until(lambda: server.is_ready, bool, 30)
        assert server.client.ping()
        assert migrations.plan(server).pending == ()
        assert server.problem == ""


def test_closing_does_not_wait_for_a_server_that_is_down(connect: Connect) -> None:
    """A collector that is told to stop while ClickHouse is away stops."""
    server = connect("http://127.0.0.1:1")
    server.start()
    wait_until(lambda: server.problem, lambda text: "not reachable" in text, 10)
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(5)
    assert not closing.is_alive()


def test_the_next_endpoint_takes_over(process: ServerProcess, connect: Connect) -> None:
    """When an endpoint dies, the next one is used, and a batch that is repeated there is stored once."""
    payload = request_with_stages(2)
    body = write_varint(len(payload)) + payload
    with Relay(process.port) as first, Relay(process.port) as second:
        server = connect(f"http://127.0.0.1:1, http://127.0.0.1:{first.port},http://127.0.0.1:{second.port}/")
        migrations.apply(server)
        before = process.count("spans")
        sink = ServerSink(server)
        sink.insert(TRACES, body, "failover-1")
        first.cut()
        sink.insert(TRACES, body, "failover-1")
        sink.insert(TRACES, body, "failover-2")
    assert process.count("spans") - before == 12
    with pytest.raises(Unusable, match=r"does not answer.*127\.0\.0\.1:1 is not reachable"):
        _ = server.client


def test_an_endpoint_with_other_data_is_not_used(tmp_path: Path, connect: Connect) -> None:
    """Two servers that are no replicas of each other are refused as endpoints: a repeated batch would be on both."""
    with ServerProcess(tmp_path / "a", server_id="a") as a, ServerProcess(tmp_path / "b", server_id="b") as b:
        server = connect(f"{a.url},{b.url}")
        server.connect()
        a.stop()
        with pytest.raises(Unusable, match="is another server than the first endpoint"):
            server.connect()
        a.start()
        server.connect()


def test_a_login_is_needed_and_named(tmp_path: Path, connect: Connect) -> None:
    """User and password work from URL and settings; a refusal names the user and never the password."""
    with ServerProcess(tmp_path / "login", login="ann:p@ss word") as process:
        connect(process.url, user="ann", password="p@ss word").connect()
        connect(process.url.replace("//", "//ann:p%40ss%20word@")).connect()
        with pytest.raises(UserError, match=r"refuses the user 'bob' \(code 516\)") as caught:
            connect(process.url, user="bob", password="secret").connect()
        assert "secret" not in str(caught.value)
        with pytest.raises(UserError, match="refuses the user 'default'"):
            connect(process.url).connect()


def test_a_token_is_a_login(tmp_path: Path, connect: Connect) -> None:
    """An access token is sent as a bearer token."""
    with ServerProcess(tmp_path / "token", token="abc.def") as process:
        assert connect(process.url, token="abc.def").connect().ping()
        with pytest.raises(UserError, match="refuses the token"):
            connect(process.url, token="old").connect()


def test_an_old_server_is_refused(process: ServerProcess, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version below the oldest is an error that names both."""
    monkeypatch.setattr(server_endpoint, "OLDEST", (99, 1))
    with pytest.raises(UserError, match=r"has version 2\d\..*needs 25\.9 or newer"):
        connect(process.url).connect()


def test_tls_with_a_ca_and_a_client_certificate(process: ServerProcess, tmp_path: Path, connect: Connect) -> None:
    """A private CA is trusted when given, and only then; a server that wants a client's certificate gets it."""
    ca, other = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    client = ca.issue_cert("collector@example.org")
    client.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    client.private_key_pem.write_to_path(tmp_path / "client.key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    with Relay(process.port, context) as relay:
        url = f"https://127.0.0.1:{relay.port}"
        assert connect(url, ca=tmp_path / "ca.pem").connect().ping()
        for config in ({}, {"ca": tmp_path / "other.pem"}):
            with pytest.raises(UserError, match=r"(?i)certificate.*--clickhouse-ca"):
                connect(url, **config).connect()
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    files = {"client_cert": tmp_path / "client.pem", "client_key": tmp_path / "client.key"}
    with Relay(process.port, context) as relay:
        url = f"https://127.0.0.1:{relay.port}"
        assert connect(url, ca=tmp_path / "ca.pem", **files).connect().ping()
        with pytest.raises(UserError):
            connect(url, ca=tmp_path / "ca.pem").connect()


def test_collectors_that_start_at_once_make_one_schema(tmp_path: Path, connect: Connect) -> None:
    """Several collectors migrate an empty server at the same moment; all succeed and every object is there once."""
    with ServerProcess(tmp_path / "many") as process:
        servers = [connect(process.url) for _ in range(4)]
        for server in servers:
            server.start()
        for server in servers:
            assert wait_until(lambda server=server: server.is_ready, bool, 60), server.problem
        assert migrations.plan(servers[0]).pending == ()
        objects = servers[0].rows("select count(), uniqExact(name) from system.tables where database = 'tailspan'")
        assert objects == [[str(len(migrations.load()) - 1)] * 2]


def test_in_a_cluster_every_insert_waits_for_all_shards(process: ServerProcess, connect: Connect) -> None:
    """The settings of a cluster are those of every statement, so that no insert is only queued on a node."""
    server = connect(process.url, cluster="prod", insert_quorum=2)
    names = "('distributed_foreground_insert', 'insert_quorum')"
    rows = server.rows(f"select name, value from system.settings where name in {names} order by name")
    assert rows == [["distributed_foreground_insert", "1"], ["insert_quorum", "2"]]
    one = connect(process.url).rows(f"select value from system.settings where name in {names} order by name")
    assert one == [["0"], ["0"]]


@pytest.mark.skipif("TAILSPAN_TEST_CLICKHOUSE_URL" not in os.environ, reason="TAILSPAN_TEST_CLICKHOUSE_URL is not set")
def test_real_server(connect: Connect) -> None:
    """A real server gets the schema, and a batch that is repeated is stored once."""
    server = connect(os.environ["TAILSPAN_TEST_CLICKHOUSE_URL"])
    server.start()
    assert wait_until(lambda: server.is_ready, bool, 60), server.problem
    name = f"real-{os.urandom(4).hex()}"
    payload = request_with_stages(2, name)
    for _ in range(2):
        ServerSink(server).insert(TRACES, write_varint(len(payload)) + payload, name)
    assert server.rows(f"select count() from tailspan.spans where service = '{name}'") == [["6"]]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"url": ""}, "no ClickHouse URL is given"),
        ({"url": "localhost:8123"}, "is no ClickHouse URL"),
        ({"url": "http://a:1,ftp://user:secret@b"}, "'ftp://b' is no ClickHouse URL"),
        ({"url": "http://a:99999"}, "is no ClickHouse URL"),
        ({"url": "http://a?compress=1"}, "is no ClickHouse URL"),
        ({"url": "http://a", "token": "t", "user": "u"}, "both a token and a user"),
        ({"url": "http://u:p@a", "token": "t"}, "both a token and a user"),
        ({"url": "https://a", "ca": Path("/nowhere/ca.pem")}, "ca.pem for ClickHouse does not exist"),
        ({"url": "https://a", "client_cert": Path(__file__)}, "needs its key"),
        ({"url": "http://a", "ca": Path(__file__)}, "http://a:8123 does not use TLS"),
    ],
)
def test_a_wrong_address_is_told_at_once(config: dict[str, object], reason: str) -> None:
    """What can never work is an error before anything is opened, and shows no password."""
    with pytest.raises(UserError, match=reason) as caught:
        parse_endpoints(ServerConfig(**config))  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_addresses_have_usual_ports_and_no_secrets_in_print() -> None:
    """The ports are ClickHouse's own unless given; a configuration prints no password and no token."""
    config = ServerConfig("http://a, https://ann:secret@b/path/,http://[::1]:9", password="secret", token="")
    endpoints = parse_endpoints(config)
    assert [str(endpoint) for endpoint in endpoints] == ["http://a:8123", "https://b:8443/path", "http://[::1]:9"]
    assert "secret" not in f"{config!r} {endpoints!r}"
    assert Server(config).endpoint_text == "http://a:8123,https://b:8443/path,http://[::1]:9"
