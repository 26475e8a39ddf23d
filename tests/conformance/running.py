"""A collector with all its OTLP ports, its memory, and what it stored of a service."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from tests.conformance.sending import JSON, PROTOBUF, Grpc, Http, Transport
from tests.conformance.signals import Signal
from tests.support.collector import RunningCollector, wait_until

MIB = 1024 * 1024
TRANSPORTS = ("grpc", "http/protobuf", "http/json")


class OtlpCollector(RunningCollector):
    """`tailspan up` with what these tests ask of it; with a tokens file, SQL needs one of its tokens."""

    token = ""

    def client(self) -> Client:
        """See `RunningCollector.client`."""
        if self._client is None:
            self._client = clickhouse_connect.get_client(
                dsn=self.url, password=self.token, autogenerate_session_id=False
            )
        return self._client

    @property
    def otlp_http_port(self) -> int:
        """The port of OTLP/HTTP."""
        return self.ports["otlp_http_port"]

    def transport(self, name: str) -> Transport:
        """Open a connection; the caller closes it."""
        if name == "grpc":
            return Grpc(self.otlp_port)
        return Http(self.otlp_http_port, PROTOBUF if name == "http/protobuf" else JSON)

    def stored(self, signal: Signal, service: str, expected: int, timeout: float = 20.0) -> int:
        """Wait until that many items of a service are stored; return how many are."""
        return wait_until(
            lambda: int(self.query(signal.count_sql, service=service)[0][0]), lambda n: n >= expected, timeout
        )

    def metric(self, name: str) -> float:
        """Return the sum of one of the collector's own metrics over its labels."""
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        starts = (f"tailspan_collector_{name}{{", f"tailspan_collector_{name} ")
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(starts))

    @property
    def pid(self) -> int:
        """The process."""
        assert self.process is not None
        return self.process.pid

    def resident_bytes(self) -> int:
        """Memory of the process now."""
        return _status_bytes(self.pid, "VmRSS:")

    def peak_bytes(self) -> int:
        """Largest memory of the process since it started or since `forget_peak`."""
        return _status_bytes(self.pid, "VmHWM:")

    def forget_peak(self) -> int:
        """Let the peak begin anew; return the memory now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.resident_bytes()

    def is_up(self) -> bool:
        """Whether the process still runs."""
        return self.process is not None and self.process.poll() is None


@contextmanager
def bounded_memory(collector: OtlpCollector, most_bytes: int) -> Iterator[None]:
    """Check that the process never needs more than that on top of what it has."""
    before = collector.forget_peak()
    yield
    grown = collector.peak_bytes() - before
    assert grown <= most_bytes, f"the collector took {grown / MIB:.0f} MiB more"


def kept(collector: OtlpCollector, signal: Signal, service: str) -> int:
    """Wait until a request of one item is stored or a reject; return how often it is there."""
    stored = signal.count_sql.replace("{service:String}", f"'{service}'")
    rejected = f"select count() from tailspan.rejects where position(payload, '{service}') > 0"
    return wait_until(
        lambda: int(collector.query(f"select ({stored}) + ({rejected})")[0][0]), lambda count: count > 0, 30
    )


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def unique(name: str) -> str:
    """Return a service name that no other test uses."""
    return f"{name}-{os.urandom(6).hex()}"
