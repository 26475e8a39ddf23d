"""Inserts into a ClickHouse server over HTTP, through clickhouse-connect: the bytes as they are, not compressed.

Compressing would cost the collector several times what all the rest of its work does; beyond the machine, put the
compression where it is needed, into the network between the two.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from tailspan_collector.errors import InsertError, TransientError, classify
from tailspan_collector.rowbinary import reject_row
from tailspan_collector.signals import SIGNALS, Signal
from tailspan_collector.sink import REJECTS_COLUMNS, REJECTS_TABLE, Body, Reject, insert_settings, reject_settings


class Connection(Protocol):
    """What is needed of `server.Server`."""

    @property
    def client(self) -> Client:
        """The client of the endpoint that is in use now."""


class ServerSink:
    """See `sink.Sink`; the protobuf schema travels as a setting."""

    def __init__(self, server: Connection) -> None:
        self._server = server
        self._schemas = {
            signal.name: {
                "format_schema_source": "string",
                "format_schema": compact(signal.proto_file.read_text(encoding="utf-8")),
                "format_schema_message_name": signal.proto_message,
            }
            for signal in SIGNALS
            if signal.proto_file.exists()
        }

    def insert(self, signal: Signal, body: Body, token: str) -> None:
        """See `Sink`."""
        settings = {**insert_settings(token), **self._schemas[signal.name]}
        self._raw_insert(signal.table, None, body, settings, "Protobuf")

    def reject(self, *rejects: Reject) -> None:
        """See `Sink`."""
        settings = {**reject_settings(rejects[0].token)}
        self._raw_insert(REJECTS_TABLE, REJECTS_COLUMNS, b"".join(map(reject_row, rejects)), settings, "RowBinary")

    def _raw_insert(
        self, table: str, columns: tuple[str, ...] | None, body: Body, settings: dict[str, str | int], form: str
    ) -> None:
        # Any buffer will do: clickhouse-connect copies `bytes` behind the statement, and sends a view as it is.
        block: Any = body
        try:
            self._server.client.raw_insert(table, columns, block, settings, form)
        except ClickHouseError as error:
            raise insert_error(error) from error


def compact(proto: str) -> str:
    """Return a protobuf schema without comments and needless blanks: in a URL each costs time to escape, twice."""
    return re.sub(r"\s*([{}=;])\s*", r"\1", re.sub(r"//[^\n]*", "", proto)).strip()


def insert_error(error: ClickHouseError) -> InsertError:
    """Return what an error of clickhouse-connect means for an insert; without a code the server was not reached."""
    code = getattr(error, "code", None)
    if not code:
        return TransientError(0, str(error))
    return classify(str(error), int(code))
