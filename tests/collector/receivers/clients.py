"""Clients for tests of the receivers: they tell all that a sender is told, and do what honest libraries do not."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from tailspan_collector.framing import write_varint
from tailspan_collector.signals import TRACES, Signal

PROTOBUF, JSON = "application/x-protobuf", "application/json"


# --- gRPC -------------------------------------------------------------------------------------------------------------


def open_channel(port: int) -> grpc.Channel:
    """Return a channel with a connection of its own."""
    return grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])


def export(port: int, request: bytes, signal: Signal = TRACES, timeout: float = 10, **call: Any) -> bytes:
    """Call `Export` on a connection of its own."""
    with open_channel(port) as opened:
        response: bytes = opened.unary_unary(f"/{signal.service}/Export")(request, timeout=timeout, **call)
        return response


def filler(size: int) -> bytes:
    """Return a request of about that size which compresses well."""
    return b"\x0a" + write_varint(size) + bytes(size)


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call failed."""

    code: grpc.StatusCode
    details: str
    retry_after_s: float | None


def failure_of(error: grpc.RpcError) -> Failure:
    """Read the error of a call, with the RetryInfo that OTLP senders look for."""
    metadata = dict(error.trailing_metadata() or ())
    retry_after_s = None
    if "grpc-status-details-bin" in metadata:
        status = Status.FromString(metadata["grpc-status-details-bin"])
        assert status.code == error.code().value[0]
        retry = RetryInfo()
        if status.details[0].Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return Failure(error.code(), error.details(), retry_after_s)


def refused(port: int, request: bytes, signal: Signal = TRACES, **call: Any) -> Failure:
    """Call `Export`, which must fail."""
    try:
        export(port, request, signal, **call)
    except grpc.RpcError as error:
        return failure_of(error)
    raise AssertionError("the call succeeded")


# --- HTTP -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response:
    """What came back over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> Status:
        """Return the `google.rpc.Status` of an error in protobuf."""
        return Status.FromString(self.body)

    def json(self) -> Any:
        """Return a body in JSON."""
        return json.loads(self.body)


class RawHttp:
    """A TCP connection on which a test writes what it likes."""

    def __init__(self, port: int, timeout: float = 10) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)

    def send(self, data: bytes) -> None:
        """Write bytes."""
        self.socket.sendall(data)

    def request(
        self, headers: Mapping[str, str], body: bytes = b"", path: str = "/v1/traces", method: str = "POST"
    ) -> None:
        """Write a request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in headers.items())]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def response(self) -> Response:
        """Read one response with a Content-Length."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more(data)
        head, _, body = data.partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += self._more(body)
        return Response(int(status_line.split()[1]), headers, body)

    def _more(self, before: bytes) -> bytes:
        more = self.socket.recv(65536)
        if not more:
            raise ConnectionError(f"closed after {before!r}")
        return more

    def closed_within(self, seconds: float) -> bool:
        """Whether the server closes the connection in time; throws away what it sends."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except ConnectionError:
                return True
        return False

    def __enter__(self) -> RawHttp:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def post(port: int, body: bytes, path: str = "/v1/traces", method: str = "POST", **headers: str) -> Response:
    """Send one request; `content_type="..."` is the header Content-Type, protobuf if it is not given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named = {"content-type": PROTOBUF, "content-length": str(len(body))} | named
    with RawHttp(port) as connection:
        connection.request(named, body, path, method)
        return connection.response()
