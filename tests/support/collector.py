"""A real `tailspan up` in a process of its own, for tests of everything that sends spans or queries them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import clickhouse_connect
import grpc
from clickhouse_connect.driver.client import Client

from tests.support.new_database import make_database

_READY_S = 30.0
_STOP_S = 60.0
T = TypeVar("T")


class RunningCollector:
    """A collector on free ports; `restart` keeps the data and the ports.

    In a new folder it finds a database that has the schema, unless it is to start `from_nothing`.
    """

    def __init__(self, data: Path, *arguments: str, from_nothing: bool = False) -> None:
        self.data = data
        self.from_nothing = from_nothing
        self.arguments = arguments
        self.ports = dict.fromkeys(("otlp_port", "otlp_http_port", "http_port", "admin_port"), 0)
        self.process: subprocess.Popen[str] | None = None
        self._output = data.with_name(f"{data.name}.log")
        self._client: Client | None = None

    def command(self) -> list[str]:
        """Return the command line of the process."""
        words = [sys.executable, "-m", "tailspan", "up", "--data", str(self.data)]
        for name, port in self.ports.items():
            words += [f"--{name.replace('_', '-')}", str(port)]
        return [*words, *self.arguments]

    def start(self) -> Self:
        """Start and wait until it is ready."""
        if not self.from_nothing and not self.data.exists():
            self.data.mkdir(parents=True)
            make_database(self.data / "clickhouse")
        with self._output.open("a") as output:
            self.process = subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        deadline = time.monotonic() + _READY_S
        while (endpoints := self._endpoints()) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the collector did not start:\n{self.output}")
            time.sleep(0.02)
        self.otlp_endpoint: str = endpoints["otlp"]
        self.url: str = endpoints["clickhouse"]
        self.otlp_http_endpoint: str = endpoints["otlp_http"]
        self.admin: str = endpoints["admin"]
        for name, url in zip(
            self.ports, (self.otlp_endpoint, self.otlp_http_endpoint, self.url, self.admin), strict=True
        ):
            self.ports[name] = int(url.rpartition(":")[2])
        return self

    def _endpoints(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.data / "endpoints.json").read_text())
        except FileNotFoundError:
            return None
        return found if self.process is not None and found["pid"] == self.process.pid else None

    @property
    def otlp_port(self) -> int:
        """The port of OTLP/gRPC; 0 before the first start."""
        return self.ports["otlp_port"]

    @property
    def http_port(self) -> int:
        """The port for SQL; 0 before the first start."""
        return self.ports["http_port"]

    @property
    def output(self) -> str:
        """What the process printed so far."""
        return self._output.read_text()

    def client(self) -> Client:
        """Return the clickhouse-connect client of the read-only interface; closed with the collector."""
        if self._client is None:
            # Without a session, threads may share it.
            self._client = clickhouse_connect.get_client(dsn=self.url, autogenerate_session_id=False)
        return self._client

    def query(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run one query."""
        return [tuple(row) for row in self.client().query(sql, parameters=parameters).result_rows]

    def export(self, *requests: bytes, timeout: float = 30.0) -> None:
        """Send serialized trace requests over gRPC; return when all are acknowledged."""
        with grpc.insecure_channel(f"127.0.0.1:{self.otlp_port}") as channel:
            export = exporter(channel)
            for request in requests:
                export(request, timeout=timeout)

    def wait_rows(self, count: int, table: str = "tailspan.spans", timeout: float = 60.0) -> int:
        """Wait until a table has that many rows; return how many it has."""
        return wait_until(lambda: self.query(f"select count() from {table}")[0][0], lambda n: n >= count, timeout)

    def kill9(self) -> None:
        """Kill the process without any notice."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask the process to end as an operator would; return its exit code."""
        self._close_client()
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)

    def restart(self) -> Self:
        """End the process if it runs, and start it again on the same data and ports."""
        self.stop()
        return self.start()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def exporter(channel: grpc.Channel) -> Callable[..., bytes]:
    """Return the call TraceService/Export with bytes in and out."""
    call: Callable[..., bytes] = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
    return call


def wait_until(get: Callable[[], T], enough: Callable[[T], bool], timeout: float = 60.0) -> T:
    """Call `get` until its value is enough or the time is over; return the last value."""
    deadline = time.monotonic() + timeout
    while not enough(value := get()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def run_tailspan(*arguments: str, timeout: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `tailspan` command to its end."""
    command: Sequence[str] = (sys.executable, "-m", "tailspan", *arguments)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **environment}
    )
