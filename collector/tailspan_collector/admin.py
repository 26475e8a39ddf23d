"""The admin port: `/healthz` for liveness, `/readyz` for readiness, `/metrics` for Prometheus.

In: GET without a body. Out: `/healthz` 200 while the process serves; `/readyz` 200, or 503 when a spool takes no data,
with JSON that says why; `/metrics` in Prometheus' text format or OpenMetrics, as the Accept header asks.
It has no authentication and shows no payload, token or password: keep it inside the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict

import uvicorn
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.server import ServerState

from tailspan.errors import UserError
from tailspan.version import __version__
from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers.connections import Connection
from tailspan_collector.status import Status

_LOG = logging.getLogger(__name__)
_STATUS_S = 2.0
_MOST_CONNECTIONS = 256
_SLOW_S = 10.0
_TICK_S = 1.0
_PREFIX = "tailspan_collector_"
_OPENMETRICS = "application/openmetrics-text"


class StatusCollector(Collector):
    """The gauges that are read from a `Status` at each scrape."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges; without a status only `ready` 0, so that a scrape never fails."""
        yield InfoMetricFamily(f"{_PREFIX}build", "Version of the collector", {"version": __version__})
        try:
            status = self._status()
        except Exception:
            _LOG.exception("the status cannot be read")
            yield _gauge("ready", "Whether every spool takes data", 0)
            return
        yield _gauge("ready", "Whether every spool takes data", status.ready)
        yield _gauge("clickhouse_up", "Whether ClickHouse answered when last asked", status.clickhouse.answers)
        yield _gauge("disk_free_bytes", "Free bytes where the spool lies", status.disk_free_bytes)
        for name, text, values in (
            ("spool_takes_data", "Whether the spool takes data", [spool.takes_data for spool in status.spools]),
            ("spool_limit_bytes", "Unread bytes at which senders wait", [spool.limit_bytes for spool in status.spools]),
            ("spool_limit_seconds", "Lag at which senders wait", [spool.limit_seconds for spool in status.spools]),
        ):
            family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=("signal",))
            for spool, value in zip(status.spools, values, strict=True):
                family.add_metric((spool.signal,), float(value))
            yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, float(value))


def build_app(metrics: Metrics, status: Callable[[], Status]) -> Starlette:
    """Return the ASGI application."""
    page = CollectorRegistry()
    # A registry is read like a collector; our own counters stay in theirs, which others may read too.
    page.register(metrics.registry)
    page.register(StatusCollector(status))
    ProcessCollector(registry=page)
    started = time.monotonic()

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        body: dict[str, object] = {"version": __version__, "uptime_seconds": round(time.monotonic() - started, 3)}
        try:
            found = await asyncio.wait_for(run_in_threadpool(status), _STATUS_S)
        except TimeoutError:
            problems = [f"the status took more than {_STATUS_S:g} s"]
            return JSONResponse({"ready": False, "problems": problems} | body, 503)
        except Exception as error:
            _LOG.exception("the status cannot be read")
            problems = [f"the status cannot be read: {type(error).__name__}"]
            return JSONResponse({"ready": False, "problems": problems} | body, 503)
        content = {"ready": found.ready, "problems": found.problems} | body | asdict(found)
        return JSONResponse(content, 200 if found.ready else 503)

    async def show_metrics(request: Request) -> Response:
        text, content_type = await run_in_threadpool(_encode, page, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", show_metrics)],
        middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)],
    )


def _encode(page: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    # The library's own reading of Accept raises on a version that is no number, and repeats one that it cannot write.
    encoder, content_type = choose_encoder(_OPENMETRICS if _OPENMETRICS in accept.lower() else "")
    return encoder(page), content_type


class _Server(uvicorn.Server):  # type: ignore[misc]
    """A server that wakes once a second, not ten times, which costs as much CPU as some thousand spans."""

    _leaving: Callable[[], object] | None = None

    async def main_loop(self) -> None:
        """Return once told to leave."""
        left = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._leaving = lambda: loop.call_soon_threadsafe(left.set)
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), _TICK_S)

    def leave(self) -> None:
        """End `main_loop`; from any thread."""
        self.should_exit = True
        if self._leaving is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._leaving()


class AdminServer:
    """The application on a socket, in a thread."""

    def __init__(
        self, listener: socket.socket | tuple[str, int], metrics: Metrics, status: Callable[[], Status]
    ) -> None:
        """Bind if a host and a port are given; port 0 = any free one.

        Raises:
            UserError: the port is in use, or the host is not an address of this machine.
        """
        self._listener = listener if isinstance(listener, socket.socket) else _bind(*listener)
        self.port: int = self._listener.getsockname()[1]
        config = uvicorn.Config(
            build_app(metrics, status), log_config=None, access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=1, server_header=False, http=_connection,
        )  # fmt: skip
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="admin", daemon=True
        )

    def start(self) -> None:
        """Begin to answer; return when it does."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)

    def stop(self) -> None:
        """Close the port."""
        self._server.leave()
        if self._thread.is_alive():
            self._thread.join()
        self._listener.close()


def _connection(config: uvicorn.Config, server_state: ServerState, **_: object) -> Connection:
    return Connection(config, server_state, _MOST_CONNECTIONS, _SLOW_S)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"the admin port {port} on {host} cannot be bound: {error.strerror}",
            "Stop the other program, or use --admin-port or --host",
        ) from error
