"""Receivers on free ports that feed lists, and certificates for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme

from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers.grpc import GrpcReceiver
from tailspan_collector.receivers.http import HttpReceiver
from tailspan_collector.receivers.settings import ReceiverSettings, Tls
from tailspan_collector.signals import SIGNALS
from tailspan_collector.spool.interfaces import SpoolFull

LIMIT = 100_000


@dataclass
class MemoryIntake:
    """Keeps requests in a list; can be full, broken, or wait."""

    requests: list[bytes] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    error: Exception | None = None
    may_go_on: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_go_on.set()

    def append(self, payload: bytes, peer: str = "") -> bool:
        """Keep a request."""
        self.entered.set()
        self.may_go_on.wait()
        if self.error is not None:
            raise self.error
        self.requests.append(payload)
        self.peers.append(peer)
        return True

    def fill(self, retry_after_s: float = 2.5) -> None:
        """Refuse what comes from now on."""
        self.error = SpoolFull("no room", retry_after_s)

    def submit(self, payload: bytes, peer: str, done: Callable[[Exception | None], None]) -> None:
        """Keep a request and call back from another thread, as a spool does."""
        if isinstance(self.error, SpoolFull):
            raise self.error

        def store() -> None:
            try:
                self.append(payload, peer)
            except OSError as error:
                done(error)
            else:
                done(None)

        threading.Thread(target=store).start()


@dataclass
class Receiving:
    """Both receivers and what they feed."""

    grpc: GrpcReceiver
    http: HttpReceiver
    intakes: dict[str, MemoryIntake]
    metrics: Metrics
    is_ready: bool = True

    @property
    def traces(self) -> MemoryIntake:
        """The intake of traces."""
        return self.intakes["traces"]

    def count(self, transport: str, code: str, signal: str = "traces") -> float:
        """Return the counter of answered requests."""
        labels = {"signal": signal, "transport": transport, "code": code}
        return self.metrics.registry.get_sample_value("tailspan_collector_requests_total", labels) or 0.0


@contextmanager
def receiving(**settings: Any) -> Iterator[Receiving]:
    """Run both receivers with a small limit of size, on intakes in memory."""
    chosen = ReceiverSettings(**{"grpc_port": 0, "http_port": 0, "max_request_bytes": LIMIT} | settings)
    intakes = {signal.name: MemoryIntake() for signal in SIGNALS}
    metrics = Metrics()
    running: list[Receiving] = []

    def ready() -> bool:
        return all(item.is_ready for item in running)

    running.append(
        Receiving(
            GrpcReceiver(chosen, intakes, metrics, ready),
            HttpReceiver(chosen, intakes, metrics, ready),
            intakes,
            metrics,
        )
    )
    item = running[0]
    item.grpc.start()
    item.http.start()
    try:
        yield item
    finally:
        for held in intakes.values():
            held.may_go_on.set()
        item.grpc.stop(1)
        item.http.stop(1)


@dataclass
class Authority:
    """A certificate authority and the files of a server certified by it."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)

    def tls(self, client_ca: Path | None = None) -> Tls:
        """Write a new certificate for 127.0.0.1 and return its files."""
        issued = self.ca.issue_cert("127.0.0.1", "localhost")
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        new_cert, new_key = cert.with_suffix(".new"), key.with_suffix(".new")
        new_cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        new_key.write_bytes(issued.private_key_pem.bytes())
        new_key.replace(key)
        new_cert.replace(cert)
        return Tls(cert, key, client_ca)

    def root(self) -> bytes:
        """Return the authority's own certificate."""
        pem: bytes = self.ca.cert_pem.bytes()
        return pem

    def root_file(self, name: str = "client-ca.pem") -> Path:
        """Write the authority's own certificate."""
        path = self.folder / name
        path.write_bytes(self.root())
        return path
