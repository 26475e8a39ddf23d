"""The ClickHouse of a collector: embedded with its read-only HTTP port, or a server or cluster.

In: settings. Out: a `Target` with a sink for the writers, a client for queries, and whether it answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from tailspan_collector.access import Access
from tailspan_collector.embedded import EmbeddedSink, Engine, Folder
from tailspan_collector.http import HttpServer
from tailspan_collector.receivers.ports import bracketed, listen
from tailspan_collector.receivers.tokens import Tokens
from tailspan_collector.server import Server
from tailspan_collector.server_endpoint import ServerConfig
from tailspan_collector.server_sink import ServerSink
from tailspan_collector.settings import Settings
from tailspan_collector.sink import Sink
from tailspan_schemas import migrations


@dataclass(frozen=True, slots=True)
class Target:
    """One ClickHouse."""

    endpoint: str
    """Where it answers queries, without credentials."""
    sink: Sink
    ping: Callable[[], object]
    """Runs a trivial query and raises if that fails."""
    query_client: Callable[[], Client]
    """Returns a client for queries; raises while ClickHouse is down."""
    start: Callable[[], None]
    """Begins to connect, where that may take its time."""


def open_target(settings: Settings, folder: Folder, parts: ExitStack) -> Target:
    """Open the ClickHouse that the settings name; `parts` closes it.

    Raises:
        UserError: the embedded one or its port cannot be used, or an address is malformed.
    """
    if settings.clickhouse_url is None:
        return _embedded(settings, folder, parts)
    return _server(settings, parts)


def _embedded(settings: Settings, folder: Folder, parts: ExitStack) -> Target:
    secret = secrets.token_hex(32)  # of this process' own client, beside the tokens that others have
    access = Access(Tokens(settings.tokens_file), secret) if settings.tokens_file is not None else None
    listener = listen("HTTP", settings.host, settings.http_port, "--http-port")
    parts.callback(listener.close)
    engine = parts.enter_context(Engine(folder.path / "clickhouse"))
    migrations.apply(engine)
    http = HttpServer(engine, listener, access)
    http.start()
    parts.callback(http.stop)
    endpoint = f"http://{bracketed(settings.host)}:{http.port}"
    client = _OwnClient(endpoint, secret)
    parts.callback(client.close)
    return Target(endpoint, EmbeddedSink(engine), engine.ping, client.get, lambda: None)


def _server(settings: Settings, parts: ExitStack) -> Target:
    server = Server(
        ServerConfig(
            settings.clickhouse_url or "",
            settings.clickhouse_user,
            settings.clickhouse_password,
            settings.clickhouse_token,
            settings.clickhouse_ca,
            settings.clickhouse_cert,
            settings.clickhouse_key,
            settings.cluster,
            settings.insert_quorum,
        )
    )
    parts.callback(server.close)
    return Target(
        server.endpoint_text,
        ServerSink(server),
        lambda: server.client.command("select 1"),
        lambda: server.client,
        server.start,
    )


class _OwnClient:
    """A client of the collector's own port, made when it is first needed."""

    def __init__(self, endpoint: str, secret: str) -> None:
        self._endpoint, self._secret = endpoint, secret
        self._client: Client | None = None

    def get(self) -> Client:
        """Return the client."""
        if self._client is None:
            self._client = clickhouse_connect.get_client(
                dsn=self._endpoint, access_token=self._secret, autogenerate_session_id=False
            )
        return self._client

    def close(self) -> None:
        """Close the client if there is one."""
        if self._client is not None:
            self._client.close()
