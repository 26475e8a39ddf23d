"""The ways of the same spans into ClickHouse that `bench_ingest` and `bench_disk` compare, over an embedded ClickHouse.

`passed`    our collector's insert: the OTLP bytes, decoded by ClickHouse into spans, rollup and trace index
`otel`      rows of the schema of the OpenTelemetry Collector's exporter, as that and rotel insert them
`native`    the flat rows of our own table in ClickHouse's Native format: what storing costs without any decoding
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks.rotel import OTEL_TRACES
from tailspan_collector.embedded import EmbeddedSink, Engine
from tailspan_collector.framing import write_varint
from tailspan_collector.signals import TRACES
from tailspan_schemas import migrations


class Paths:
    """One database with both schemas."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder)
        migrations.apply(self.engine)
        self.engine.command("create database otel")
        self.engine.command(OTEL_TRACES)
        self.engine.command("create table tailspan.flat as tailspan.spans engine = Null")
        self.engine.command("create table tailspan.stored as tailspan.spans")
        self._sink = EmbeddedSink(self.engine)

    def passed(self, requests: list[bytes]) -> float:
        """Insert as the collector does; return the CPU seconds of this process, which are ClickHouse's."""
        body = b"".join(write_varint(len(request)) + request for request in requests)
        begin_s = time.process_time()
        self._sink.insert(TRACES, body, uuid.uuid4().hex)
        return time.process_time() - begin_s

    @contextmanager
    def without(self, views: Sequence[str]) -> Iterator[None]:
        """Leave materialized views out for a while."""
        texts = {migration.name: migration.sql for migration in migrations.load()}
        for view in views:
            self.engine.command(f"drop table tailspan.{view} sync")
        yield
        for view in views:
            self.engine.command(texts[view])

    def otel(self, rows: bytes) -> float:
        """Insert rows of otel_traces in Native format."""
        return self._insert("otel.otel_traces", rows)

    def native(self, rows: bytes) -> float:
        """Insert flat rows of our table, without rollup and index."""
        return self._insert("tailspan.stored", rows)

    def flat_rows(self) -> bytes:
        """Return all of `tailspan.spans` in Native format."""
        return self._bytes("select * from tailspan.spans", "Native")

    def otel_rows(self) -> bytes:
        """Return all of `tailspan.spans` as rows of otel_traces, by the view of that name, in Native format."""
        columns = self.engine.rows("select name from system.columns where database = 'otel' and table = 'otel_traces'")
        names = ", ".join(f"`{name}`" for (name,) in columns)
        return self._bytes(f"select {names} from tailspan.otel_traces", "Native")

    def bytes_on_disk(self, *tables: str) -> int:
        """Merge tables and return what they take on disk."""
        for table in tables:
            self.engine.command(f"optimize table {table} final")
        names = ", ".join(f"'{table}'" for table in tables)
        sql = f"select sum(bytes_on_disk) from system.parts where active and concat(database, '.', table) in ({names})"
        return int(self.engine.rows(sql)[0][0])

    def _insert(self, table: str, rows: bytes) -> float:
        file = os.memfd_create("insert")
        connection = self.engine.connect()
        try:
            with open(file, "wb", closefd=False) as stream:
                stream.write(rows)
            begin_s = time.process_time()
            connection.query(f"insert into {table} from infile '/proc/self/fd/{file}' format Native")
            return time.process_time() - begin_s
        finally:
            connection.close()
            os.close(file)

    def _bytes(self, sql: str, form: str) -> bytes:
        connection = self.engine.connect()
        try:
            return bytes(connection.query(sql, form).bytes())
        finally:
            connection.close()


def decode_rows(requests: list[bytes]) -> list[list[Any]]:
    """Decode requests in Python into rows of otel_traces, as a collector in Python would."""
    rows = []
    for request in requests:
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans:
            attributes = {item.key: _text(item.value) for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                rows += [_row(span, attributes, scope.scope.name, scope.scope.version) for span in scope.spans]
    return rows


def _row(span: Span, resource: dict[str, str], scope: str, version: str) -> list[Any]:
    return [
        span.start_time_unix_nano,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.name,
        Span.SpanKind.Name(span.kind),
        resource.get("service.name", ""),
        resource,
        scope,
        version,
        {item.key: _text(item.value) for item in span.attributes},
        span.end_time_unix_nano - span.start_time_unix_nano,
        str(span.status.code),
        span.status.message,
        *([], [], []),
        [link.trace_id.hex() for link in span.links],
        [link.span_id.hex() for link in span.links],
        [link.trace_state for link in span.links],
        [{item.key: _text(item.value) for item in link.attributes} for link in span.links],
    ]


def _text(value: Any) -> str:
    return str(getattr(value, value.WhichOneof("value") or "string_value"))
