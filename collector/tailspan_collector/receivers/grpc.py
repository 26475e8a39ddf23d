"""OTLP over gRPC: `Export` of the three signals with the bytes untouched, health and reflection.

In: an export request, plain or compressed with gzip, deflate or zstd. Out: an empty response (full success), sent only
after the bytes are durable. Refusals carry the codes of `refusals`; those to retry carry `google.rpc.RetryInfo` in
`grpc-status-details-bin`.

Export is registered as if it streamed its one request: so the token is checked before any of the body is read, and a
body that does not come costs a coroutine and 10 seconds instead of a thread. gRPC's core is told not to decompress,
since decompression belongs where it is bounded, counted and off the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio

from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers.admission import Admission
from tailspan_collector.receivers.bodies import Bodies
from tailspan_collector.receivers.decompress import encoding_of
from tailspan_collector.receivers.grpc_services import Services
from tailspan_collector.receivers.loops import LoopThread
from tailspan_collector.receivers.ports import bracketed, check_port, port_error
from tailspan_collector.receivers.refusals import BadData, NotNow, Refusal, Slow, TooLarge, Unauthenticated
from tailspan_collector.receivers.settings import ReceiverSettings
from tailspan_collector.receivers.tls import Certificates
from tailspan_collector.receivers.tokens import Tokens
from tailspan_collector.receivers.workers import Room, Workers
from tailspan_collector.signals import SIGNALS, Signal
from tailspan_collector.spool.interfaces import Intake

_FULL_SUCCESS = b""
_BODIES_AT_ONCE = 64  # that are being received; with the largest request, the memory that gRPC's core may need
_STREAMS = 128  # calls under way on one connection; a sender that opens more at once is told to try again
_METADATA_BYTES = 16 * 1024
_KEEPALIVE_S, _KEEPALIVE_TIMEOUT_S = 60, 20
_LEAST_PING_S = 5  # senders that ping more often are told to go away
_AGE_S, _AGE_GRACE_S = 1800, 60  # so that senders spread anew over collectors behind one name
_FLAG = "--otlp-port"
_CODES = (
    grpc.StatusCode.OK,
    grpc.StatusCode.CANCELLED,
    *(refusal.code for refusal in (BadData, TooLarge, Unauthenticated, Slow, NotNow)),
)


class GrpcReceiver:
    """A gRPC server in an event loop of its own."""

    def __init__(
        self,
        settings: ReceiverSettings,
        intakes: Mapping[str, Intake],
        metrics: Metrics,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Bind the port; `intakes` by the name of their signal, `ready` is asked twice a second.

        Raises:
            UserError: the port is in use or not allowed; the files of tokens or TLS cannot be used.
        """
        self._certificates = Certificates(settings.tls) if settings.tls is not None else None
        tokens = Tokens(settings.tokens_file) if settings.tokens_file is not None else None
        check_port("OTLP", settings.host, settings.grpc_port, _FLAG)
        room = Room(settings.max_waiting_bytes)
        workers = self._workers = Workers("otlp-grpc", room)
        bodies = Bodies(_BODIES_AT_ONCE, settings.slow_seconds)
        self._exports = [
            _Export(
                Admission(signal, intakes[signal.name], settings.max_request_bytes, room, workers),
                tokens,
                bodies,
                settings,
                metrics,
            )
            for signal in SIGNALS
        ]
        self._services = Services(ready, tokens)
        self._is_started = self._is_stopped = False
        self._loop = LoopThread("otlp-grpc")
        try:
            self._server, self.port = self._loop.run(self._bind(settings))
        except BaseException:
            self._loop.close()
            raise

    async def _bind(self, settings: ReceiverSettings) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=_options(settings))
        for export in self._exports:
            server.add_generic_rpc_handlers((export.handler(),))
        self._services.add_to(server)
        address = f"{bracketed(settings.host)}:{settings.grpc_port}"
        try:
            if self._certificates is None:
                return server, server.add_insecure_port(address)
            return server, server.add_secure_port(address, self._certificates.grpc_credentials())
        except RuntimeError as error:
            raise port_error("OTLP", settings.host, settings.grpc_port, _FLAG) from error

    def start(self) -> None:
        """Begin to answer."""
        self._is_started = True
        self._loop.run(self._start())

    async def _start(self) -> None:
        await self._server.start()
        self._services.start()

    def stop(self, grace_seconds: float) -> None:
        """Refuse new requests, let those under way end, return after about the grace; a second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._loop.run(self._stop(grace_seconds))
        self._loop.close()
        self._workers.close()

    async def _stop(self, grace_seconds: float) -> None:
        for export in self._exports:
            export.admission.stopping = True
        await self._services.stop()
        if not self._is_started:
            await self._server.start()  # gRPC gives the port of a server back only if it ran
        await self._server.stop(grace_seconds)


class _Export:
    """The method `Export` of one signal's service."""

    def __init__(
        self,
        admission: Admission,
        tokens: Tokens | None,
        bodies: Bodies,
        settings: ReceiverSettings,
        metrics: Metrics,
    ) -> None:
        self.admission = admission
        self._tokens = tokens
        self._bodies = bodies
        self._limit = settings.max_request_bytes
        self._requests = {code: _counter(metrics, admission.signal, code) for code in _CODES}
        self._ok = self._requests[grpc.StatusCode.OK]
        self._bytes = metrics.received_bytes.labels(admission.signal.name, "grpc")

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server calls for this service."""
        methods = {"Export": grpc.stream_unary_rpc_method_handler(self.export)}
        return grpc.method_handlers_generic_handler(self.admission.signal.service, methods)

    async def export(self, _requests: Any, context: Any) -> bytes:
        """Answer one call."""
        try:
            body = await self._receive(context)
            if body[:1] != b"\x0a":
                body = await self.admission.decompress(encoding_of(body), body)
            await self.admission.store(body, peer_of(context))
        except Refusal as refusal:
            self._requests[refusal.code].inc()
            await refuse(context, refusal)
        except asyncio.CancelledError:  # the sender has gone, or the grace of a shutdown is over
            self._requests[grpc.StatusCode.CANCELLED].inc()
            raise
        self._ok.inc()
        self._bytes.inc(len(body))
        return _FULL_SUCCESS

    async def _receive(self, context: Any) -> bytes:
        if self._tokens is not None:
            authenticate(context, self._tokens)
        body = await self._bodies.receive(context.read)
        if not isinstance(body, bytes):  # gRPC's core has answered already
            raise TooLarge(f"the request is larger than {self._limit} bytes, or there is none")
        return body


def authenticate(context: Any, tokens: Tokens) -> None:
    """Check the metadata of a call.

    Raises:
        Unauthenticated: it carries no token that is known.
    """
    for key, value in context.invocation_metadata():
        if key == "authorization" and isinstance(value, str) and tokens.check(value):
            return
    raise Unauthenticated("a known bearer token is needed in `authorization`")


async def refuse(context: Any, refusal: Refusal) -> NoReturn:
    """End a call with the refusal's code; raises, as gRPC wants it."""
    details = (("grpc-status-details-bin", refusal.status()),) if refusal.details() else ()
    await context.abort(refusal.code, refusal.message, trailing_metadata=details)
    raise refusal


def peer_of(context: Any) -> str:
    """Return `address:port` of a call's sender."""
    peer: str = context.peer()
    _, _, address = peer.partition(":")
    return unquote(address) if "%" in address else address


def _counter(metrics: Metrics, signal: Signal, code: grpc.StatusCode) -> Any:
    return metrics.requests.labels(signal.name, "grpc", code.name)


def _options(settings: ReceiverSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.per_message_decompression", 0),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.server_handshake_timeout_ms", int(settings.slow_seconds * 1000)),
        ("grpc.http2.settings_timeout", int(settings.slow_seconds * 1000)),
        ("grpc.max_connection_idle_ms", int(settings.idle_seconds * 1000)),
        ("grpc.max_connection_age_ms", _AGE_S * 1000),
        ("grpc.max_connection_age_grace_ms", _AGE_GRACE_S * 1000),
        ("grpc.keepalive_time_ms", _KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_S * 1000),
    ]
