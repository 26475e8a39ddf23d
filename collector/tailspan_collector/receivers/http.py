"""OTLP over HTTP: a server for `http_app` in an event loop of its own.

In: HTTP/1.1 requests, plain or over TLS. Out: see `http_app`.
uvicorn parses HTTP and keeps the flow; listening, TLS, time limits and the end of the server are here, since they
differ from what uvicorn's own server does. Units: seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from uvicorn.config import Config
from uvicorn.server import ServerState

from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers.admission import Admission
from tailspan_collector.receivers.connections import Connection
from tailspan_collector.receivers.cors import Cors
from tailspan_collector.receivers.http_app import App
from tailspan_collector.receivers.loops import LoopThread
from tailspan_collector.receivers.ports import listen
from tailspan_collector.receivers.settings import ReceiverSettings
from tailspan_collector.receivers.tls import Certificates
from tailspan_collector.receivers.tokens import Tokens
from tailspan_collector.receivers.workers import Room, Workers
from tailspan_collector.signals import SIGNALS
from tailspan_collector.spool.interfaces import Intake

_HEADER_BYTES = 32 * 1024
_FLUSH_S = 0.05  # for the last answers to leave


class HttpReceiver:
    """An HTTP server for the three signals."""

    def __init__(
        self,
        settings: ReceiverSettings,
        intakes: Mapping[str, Intake],
        metrics: Metrics,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Bind the port; `intakes` by the name of their signal, `ready` is asked for each `/readyz`.

        Raises:
            UserError: the port is in use or not allowed; an origin, or the files of tokens or TLS, cannot be used.
        """
        self._settings = settings
        self._context = Certificates(settings.tls).server_context() if settings.tls is not None else None
        tokens = Tokens(settings.tokens_file) if settings.tokens_file is not None else None
        room = Room(settings.max_waiting_bytes)
        cors = Cors(settings.cors_origins)
        self._workers = Workers("otlp-http", room)
        self._admissions = [
            Admission(signal, intakes[signal.name], settings.max_request_bytes, room, self._workers)
            for signal in SIGNALS
        ]
        app = App(self._admissions, settings, tokens, cors, room, self._workers, metrics, ready)
        self._config = _config(app, settings)
        self._state = ServerState()
        self._is_stopped = False
        metrics.connections.labels("http").set_function(lambda: len(self._state.connections))
        self._listener = listen("OTLP/HTTP", settings.host, settings.http_port, "--otlp-http-port")
        self.port: int = self._listener.getsockname()[1]
        self._server: asyncio.AbstractServer | None = None
        self._loop = LoopThread("otlp-http")

    def start(self) -> None:
        """Begin to answer."""
        self._server = self._loop.run(self._start())

    async def _start(self) -> asyncio.AbstractServer:
        return await asyncio.get_running_loop().create_server(
            lambda: Connection(self._config, self._state, self._settings.max_connections, self._settings.slow_seconds),
            sock=self._listener,
            backlog=min(self._settings.max_connections, 1024),
            ssl=self._context,
            ssl_handshake_timeout=self._settings.slow_seconds if self._context is not None else None,
        )

    def stop(self, grace_seconds: float) -> None:
        """Refuse new requests, let those under way end, return after about the grace; a second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._loop.run(self._stop(grace_seconds))
        self._loop.close()
        self._listener.close()
        self._workers.close()

    async def _stop(self, grace_seconds: float) -> None:
        for admission in self._admissions:
            admission.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_seconds)
        for task in list(self._state.tasks):
            task.cancel()  # its sender is told to come back
        await asyncio.sleep(_FLUSH_S)
        for connection in list(self._state.connections):
            connection.transport.abort()


def _config(app: App, settings: ReceiverSettings) -> Config:
    config = Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.idle_seconds,  # type: ignore[arg-type,unused-ignore]
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    config.load()
    return config
