"""OTLP over gRPC: TraceService/Export, with the request's bytes untouched.

In: an ExportTraceServiceRequest, plain or gzip. Out: an empty ExportTraceServiceResponse (full success), sent only
after the bytes are durable. A thread pool, not asyncio: a call does one thing, wait for the group fsync, and the C core
of gRPC does the rest outside the GIL; while one fsync runs, the calls that wait form the next group.

Errors: INVALID_ARGUMENT for what is no OTLP (do not retry), RESOURCE_EXHAUSTED for a request that is too large (do not
retry), UNAVAILABLE when the spool is full or closing (retry later).
"""

from __future__ import annotations

import socket
from concurrent import futures
from typing import Any, Protocol

import grpc

from tailspan.errors import UserError
from tailspan_collector.framing import is_export_request
from tailspan_collector.spool import SpoolFull

TRACE_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_THREADS = 64
_FULL_SUCCESS = b""


class Queue(Protocol):
    """Where requests go: see `spool.Spool`."""

    def append(self, payload: bytes) -> bool:
        """Return once the request is durable."""


class Receiver:
    """A gRPC server that feeds a spool."""

    def __init__(self, host: str, port: int, max_request_bytes: int, spool: Queue) -> None:
        """Bind the port.

        Raises:
            UserError: the port is in use or not allowed.
        """
        self._spool = spool
        self._server = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="otlp"),
            options=[
                ("grpc.max_receive_message_length", max_request_bytes),
                ("grpc.so_reuseport", 0),
            ],
        )
        export = grpc.unary_unary_rpc_method_handler(self._export)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(TRACE_SERVICE, {"Export": export}),)
        )
        try:
            self.port: int = self._server.add_insecure_port(f"{_bracketed(host)}:{port}")
        except RuntimeError as error:
            raise port_error("OTLP", host, port, "--otlp-port") from error

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, let those under way end."""
        self._server.stop(grace_seconds).wait()

    def _export(self, request: bytes, context: Any) -> bytes:
        if not is_export_request(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not an OTLP ExportTraceServiceRequest in protobuf")
        if request:
            try:
                self._spool.append(request)
            except SpoolFull as full:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(full))
        return _FULL_SUCCESS


def port_error(what: str, host: str, port: int, flag: str) -> UserError:
    """Return the error for a port that cannot be bound."""
    return UserError(
        f"{what} port {port} on {host} cannot be bound: it is in use", f"Stop the other program or use {flag}"
    )


def check_port(what: str, host: str, port: int, flag: str) -> None:
    """Fail early, before anything is created, if a port is taken.

    Raises:
        UserError: the port is in use, or the host is not an address of this machine.
    """
    listen(what, host, port, flag).close()


def listen(what: str, host: str, port: int, flag: str) -> socket.socket:
    """Return a bound TCP socket.

    Raises:
        UserError: the port is in use, or the host is not an address of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"--host {host} is unknown", "Use an address of this machine, e.g. 127.0.0.1") from error
    found = socket.socket(family, kind)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it; without it a kept-alive answer waits some 40 ms for the client's delayed ACK.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        if isinstance(error, PermissionError):
            raise UserError(f"{what} port {port} is not allowed for this user", f"Use {flag} 1024 to 65535") from error
        raise port_error(what, host, port, flag) from error
    return found


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
