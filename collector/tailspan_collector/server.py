"""A ClickHouse server or cluster as the target, through clickhouse-connect.

Errors: `UserError` at the start if the server cannot be reached, refuses the login or is too old; while running, errors
of an insert are `InsertError` and the writer tries again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from tailspan.errors import UserError
from tailspan_collector.errors import InsertError, TransientError, classify
from tailspan_collector.framing import write_varint
from tailspan_collector.sink import TABLE, insert_settings
from tailspan_schemas.migrations import PROTO_FILE, PROTO_MESSAGE

OLDEST = (25, 9)  # input_format_protobuf_oneof_presence


class Server:
    """One ClickHouse server; also what migrations need."""

    def __init__(self, url: str) -> None:
        """Connect.

        Raises:
            UserError: not reachable, not allowed, or older than 25.9.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is no ClickHouse URL", "Use http://[user:password@]host:8123 or https://…:8443")
        shown = f"{parts.scheme}://{parts.hostname}:{parts.port or (8443 if parts.scheme == 'https' else 8123)}"
        try:
            self.client: Client = clickhouse_connect.get_client(
                dsn=url, autogenerate_session_id=False, connect_timeout=5, compress="gzip"
            )
        except ClickHouseError as error:
            raise UserError(
                f"ClickHouse at {shown} is not reachable: {_reason(error)}",
                "Check the URL, the login and that the server runs",
            ) from error
        version = tuple(int(part) for part in re.findall(r"\d+", str(self.client.server_version))[:2])
        if version < OLDEST:
            raise UserError(
                f"ClickHouse at {shown} has version {self.client.server_version}",
                "tailspan needs 25.9 or newer; upgrade the server or use `tailspan up` (embedded)",
            )

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        self.client.command(sql)

    def rows(self, sql: str) -> Sequence[Sequence[str]]:
        """Run a query; every value as text."""
        return [[str(value) for value in row] for row in self.client.query(sql).result_rows]

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


class ServerSink:
    """Inserts over HTTP; the protobuf schema travels as a setting."""

    def __init__(self, server: Server) -> None:
        self._client = server.client
        self._schema = PROTO_FILE.read_text(encoding="utf-8")

    def insert(self, payloads: Sequence[bytes], token: str) -> None:
        """Store OTLP trace requests; see `Sink`."""
        settings = {
            **insert_settings(token),
            "format_schema_source": "string",
            "format_schema": self._schema,
            "format_schema_message_name": PROTO_MESSAGE,
        }
        body = b"".join(part for payload in payloads for part in (write_varint(len(payload)), payload))
        try:
            self._client.raw_insert(TABLE, insert_block=body, settings=settings, fmt="Protobuf")
        except ClickHouseError as error:
            raise _insert_error(error) from error

    def reject(self, payload: bytes, token: str, error: InsertError) -> None:
        """Keep a request that cannot be decoded; see `Sink`."""
        try:
            self._client.insert(
                "tailspan.rejects",
                [(error.code, error.reason, token, payload)],
                column_names=["code", "reason", "batch", "payload"],
                settings={"insert_deduplication_token": token, "async_insert": 0},
            )
        except ClickHouseError as failure:
            raise _insert_error(failure) from failure


def _reason(error: BaseException) -> str:
    """Return the operating system's reason if there is one, else the first line of ClickHouse's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0][:200]


def _insert_error(error: ClickHouseError) -> InsertError:
    code = getattr(error, "code", None)
    if not code:
        return TransientError(0, str(error))
    return classify(str(error), int(code))
