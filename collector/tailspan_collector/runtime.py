"""Starts the parts of a collector in the order in which data needs them, and stops them in the reverse.

Start: folder lock, spools, ports, ClickHouse with its schema, destinations, writers (work off what an earlier process
left), receivers. A ClickHouse server that is down delays only the writers.
Stop, within `stop_seconds`: receivers, spools, destinations and writers (send and store what is left), ClickHouse.
`DATA/endpoints.json` says where the running collector listens.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from tailspan_collector.admin import AdminServer
from tailspan_collector.embedded import Folder
from tailspan_collector.files import write_json
from tailspan_collector.forward import Destination, Forwarder, stop_all
from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers.grpc import GrpcReceiver
from tailspan_collector.receivers.http import HttpReceiver
from tailspan_collector.receivers.ports import bracketed
from tailspan_collector.receivers.settings import ReceiverSettings, Tls
from tailspan_collector.settings import Settings
from tailspan_collector.signals import SIGNALS
from tailspan_collector.spool import Spool
from tailspan_collector.status import ClickHouseProbe, StatusReader
from tailspan_collector.targets import Target, open_target
from tailspan_collector.writer import Writer

_MOST_CALL_GRACE_S = 5.0
_MOST_FORWARD_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running collector listens."""

    pid: int
    otlp: str
    otlp_http: str
    clickhouse: str
    admin: str
    data: str


class Runtime:
    """A running collector."""

    def __init__(self, settings: Settings, destinations: Sequence[Destination] = ()) -> None:
        """Start everything; on an error nothing stays behind.

        Raises:
            UserError: the folder, a port, the embedded ClickHouse or a destination cannot be used.
        """
        self._settings = settings
        self._deadline = float("inf")
        self._writers: list[Writer] = []
        with ExitStack() as parts:
            self.endpoints = self._start(destinations, parts)
            self._parts = parts.pop_all()

    def _start(self, destinations: Sequence[Destination], parts: ExitStack) -> Endpoints:
        settings, metrics = self._settings, Metrics()
        folder = Folder(settings.data)
        parts.callback(folder.close)
        spools = self._open_spools(folder, metrics, parts)
        admin = AdminServer((settings.host, settings.admin_port), metrics, lambda: self._status())
        parts.callback(admin.stop)
        for_receivers = receiver_settings(settings)
        grpc = GrpcReceiver(for_receivers, spools, metrics, lambda: self._status().ready)
        parts.callback(grpc.stop, 0.0)
        http = HttpReceiver(for_receivers, spools, metrics, lambda: self._status().ready)
        parts.callback(http.stop, 0.0)
        target = open_target(settings, folder, parts)
        probe = ClickHouseProbe(target.endpoint, target.ping)
        self._status = StatusReader(
            list(spools.values()), settings.max_spool_bytes, settings.max_spool_seconds, folder.path, probe
        )
        forwarders = [
            Forwarder(destination, spools, target.query_client, metrics, folder.path / "forward")
            for destination in destinations
        ]
        target.start()  # before it is asked whether it answers, which it does once its schema is there
        probe.start()
        parts.callback(probe.stop)
        admin.start()
        self._start_writers(spools, target, metrics, parts)
        for forwarder in forwarders:
            forwarder.start()
        parts.callback(lambda: stop_all(forwarders, min(_MOST_FORWARD_GRACE_S, self._left())))
        for spool in spools.values():
            parts.callback(spool.stop_accepting)
        grpc.start()
        http.start()
        parts.callback(self._stop_receivers, grpc, http)
        endpoints = self._endpoints(folder, grpc, http, admin, target)
        record = folder.path / "endpoints.json"
        write_json(record, asdict(endpoints))
        parts.callback(record.unlink, missing_ok=True)
        return endpoints

    def _open_spools(self, folder: Folder, metrics: Metrics, parts: ExitStack) -> dict[str, Spool]:
        settings, spools = self._settings, {}
        for signal in SIGNALS:
            place = folder.path / "spool" / signal.name
            spool = Spool(place, signal, settings.max_spool_bytes, settings.max_spool_seconds, metrics)
            parts.callback(spool.close)
            spools[signal.name] = spool
        return spools

    def _start_writers(self, spools: dict[str, Spool], target: Target, metrics: Metrics, parts: ExitStack) -> None:
        settings = self._settings
        for spool in spools.values():
            writer = Writer(
                spool, target.sink, settings.batch_bytes, settings.batch_seconds, metrics, settings.inserts_in_flight
            )
            writer.start()
            self._writers.append(writer)
        parts.callback(self._drain)

    def _endpoints(
        self, folder: Folder, grpc: GrpcReceiver, http: HttpReceiver, admin: AdminServer, target: Target
    ) -> Endpoints:
        host = bracketed(self._settings.host)
        scheme = "https" if self._settings.tls_cert else "http"
        return Endpoints(
            os.getpid(),
            f"{scheme}://{host}:{grpc.port}",
            f"{scheme}://{host}:{http.port}",
            target.endpoint,
            f"http://{host}:{admin.port}",
            str(folder.path),
        )

    def wait(self, stop: threading.Event) -> None:
        """Return when told to stop.

        Raises:
            RuntimeError: a writer failed in a way that it cannot mend.
        """
        while not stop.wait(0.5):
            for writer in self._writers:
                if writer.failure is not None:
                    raise RuntimeError(f"the writer failed: {writer.failure}") from writer.failure

    def close(self) -> None:
        """Take nothing more, store what was taken, stop."""
        self._deadline = time.monotonic() + self._settings.stop_seconds
        self._status.is_closing = True
        self._parts.close()

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _stop_receivers(self, grpc: GrpcReceiver, http: HttpReceiver) -> None:
        grace_s = min(_MOST_CALL_GRACE_S, self._settings.stop_seconds / 4)
        stopping = [threading.Thread(target=receiver.stop, args=(grace_s,)) for receiver in (grpc, http)]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def _drain(self) -> None:
        draining = [threading.Thread(target=writer.drain, args=(self._left(),)) for writer in self._writers]
        for thread in draining:
            thread.start()
        for thread in draining:
            thread.join()


def receiver_settings(settings: Settings) -> ReceiverSettings:
    """Return what the receivers need of a collector's settings."""
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return ReceiverSettings(
        settings.host,
        settings.otlp_port,
        settings.otlp_http_port,
        tls,
        settings.tokens_file,
        tuple(origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()),
        settings.max_request_bytes,
        max_connections=settings.max_connections,
    )
