"""Starts the parts of a collector in the order in which data needs them, and stops them in the reverse.

Start: folder lock, ports, ClickHouse, migrations, HTTP, spool, writer (works off what an earlier one left), receiver.
Stop: receiver, spool, writer (stores what is left), HTTP, ClickHouse.
`DATA/endpoints.json` says where the running collector listens.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from tailspan_collector.embedded import EmbeddedSink, Engine, Folder
from tailspan_collector.files import write_json
from tailspan_collector.http import HttpServer
from tailspan_collector.receiver import Receiver, check_port, listen
from tailspan_collector.server import Server, ServerSink
from tailspan_collector.settings import Settings
from tailspan_collector.sink import Sink
from tailspan_collector.spool import Spool
from tailspan_collector.writer import Writer
from tailspan_schemas import migrations

_CALL_GRACE_S = 5.0
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running collector listens."""

    pid: int
    otlp: str
    clickhouse: str
    data: str


class Runtime:
    """A running collector."""

    def __init__(self, settings: Settings) -> None:
        """Start everything; on an error nothing stays behind.

        Raises:
            UserError: the folder, a port or ClickHouse cannot be used.
        """
        with ExitStack() as parts:
            self.endpoints = self._start(settings, parts)
            self._parts = parts.pop_all()

    def _start(self, settings: Settings, parts: ExitStack) -> Endpoints:
        folder = Folder(settings.data)
        parts.callback(folder.close)
        check_port("OTLP", settings.host, settings.otlp_port, "--otlp-port")
        sink: Sink
        if settings.clickhouse_url is None:
            listener = listen("HTTP", settings.host, settings.http_port, "--http-port")
            parts.callback(listener.close)
            engine = parts.enter_context(Engine(folder.path / "clickhouse"))
            migrations.apply(engine)
            http = HttpServer(engine, listener)
            http.start()
            parts.callback(http.stop)
            sink = EmbeddedSink(engine)
            clickhouse = f"http://{settings.host}:{http.port}"
        else:
            server = Server(settings.clickhouse_url)
            parts.callback(server.close)
            migrations.apply(server)
            sink = ServerSink(server)
            clickhouse = settings.clickhouse_url.rpartition("@")[2]
        spool = Spool(folder.path / "spool" / "traces", settings.max_spool_bytes)
        parts.callback(spool.close)
        self._writer = Writer(spool, sink, settings.batch_bytes, settings.batch_seconds)
        self._writer.start()
        parts.callback(self._writer.drain, _DRAIN_S)
        parts.callback(spool.stop_accepting)
        receiver = Receiver(settings.host, settings.otlp_port, settings.max_request_bytes, spool)
        receiver.start()
        parts.callback(receiver.stop, _CALL_GRACE_S)
        endpoints = Endpoints(os.getpid(), f"http://{settings.host}:{receiver.port}", clickhouse, str(folder.path))
        record = folder.path / "endpoints.json"
        write_json(record, asdict(endpoints))
        parts.callback(record.unlink, missing_ok=True)
        return endpoints

    def wait(self, stop: threading.Event) -> None:
        """Return when told to stop.

        Raises:
            RuntimeError: the writer failed in a way that it cannot mend.
        """
        while not stop.wait(0.5):
            if self._writer.failure is not None:
                raise RuntimeError(f"the writer failed: {self._writer.failure}") from self._writer.failure

    def close(self) -> None:
        """Take nothing more, store what was taken, stop."""
        self._parts.close()
