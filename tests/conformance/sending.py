"""OTLP over each transport with the bytes in the test's hand, and answers in one form.

`Grpc` is gRPC; `Http` is HTTP/1.1 with a content type. What a test asserts of all of them it asserts once: `ok`,
`retryable`, `message`.
"""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from tests.conformance.signals import Signal

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_RETRYABLE_CODES = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
_RETRYABLE_STATUSES = {429, 502, 503, 504}
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: `code` is a gRPC code or an HTTP status, `body` the response message as it came."""

    code: grpc.StatusCode | int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    status: status_pb2.Status | None = None
    """The error as a google.rpc.Status; over gRPC from its trailer, or made of code and message."""

    @property
    def ok(self) -> bool:
        """Whether the request was accepted."""
        return self.code in (grpc.StatusCode.OK, 200)

    @property
    def retry_info(self) -> float | None:
        """Seconds of a RetryInfo or Retry-After; None if there is none."""
        if "retry-after" in self.headers:
            return float(self.headers["retry-after"])
        for info in details(self.status, error_details_pb2.RetryInfo):
            return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
        return None

    @property
    def retryable(self) -> bool:
        """Whether a sender that follows the specification tries again."""
        if self.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return self.retry_info is not None
        return self.code in _RETRYABLE_CODES or self.code in _RETRYABLE_STATUSES

    @property
    def text(self) -> str:
        """The message of an error."""
        return self.status.message if self.status is not None else ""

    def response(self, signal: Signal) -> Any:
        """Return the response message of a success."""
        message = signal.response()
        if self.headers.get("content-type") == JSON:
            json_format.Parse(self.body, message)
        else:
            message.MergeFromString(self.body)
        return message


def details(status: status_pb2.Status | None, kind: type[Any]) -> list[Any]:
    """Return the details of one type."""
    found = []
    for item in status.details if status is not None else ():
        message = kind()
        if item.Unpack(message):
            found.append(message)
    return found


class Transport(Protocol):
    """A way to send an export request."""

    def encode(self, message: Any) -> bytes:
        """Return a message in the transport's encoding."""

    def send(self, signal: Signal, body: bytes, *, gzipped: bool = False, headers: Mapping[str, str] = ...) -> Reply:
        """Send encoded bytes and return the answer."""

    def close(self) -> None:
        """Close the connection."""


class Grpc:
    """OTLP/gRPC on one channel."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(
            f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        )

    def encode(self, message: Any) -> bytes:
        """See `Transport`."""
        encoded: bytes = message.SerializeToString()
        return encoded

    def send(self, signal: Signal, body: bytes, *, gzipped: bool = False, headers: Mapping[str, str] = {}) -> Reply:
        """See `Transport`."""
        call = self.channel.unary_unary(signal.method)
        compression = grpc.Compression.Gzip if gzipped else grpc.Compression.NoCompression
        try:
            answer, state = call.with_call(
                body, timeout=TIMEOUT_S, metadata=tuple(headers.items()), compression=compression
            )
        except grpc.RpcError as error:
            return _grpc_failure(error)
        return Reply(state.code(), answer)

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


def _grpc_failure(error: Any) -> Reply:
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status(code=error.code().value[0], message=error.details() or "")
    if "grpc-status-details-bin" in trailers:
        status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    return Reply(error.code(), b"", status=status)


class Http:
    """OTLP/HTTP with one content type, on one kept-alive connection."""

    def __init__(self, port: int, content_type: str) -> None:
        self.content_type = content_type
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def encode(self, message: Any) -> bytes:
        """See `Transport`."""
        return otlp_json(message) if self.content_type == JSON else message.SerializeToString()

    def send(self, signal: Signal, body: bytes, *, gzipped: bool = False, headers: Mapping[str, str] = {}) -> Reply:
        """See `Transport`."""
        encoding = {"Content-Encoding": "gzip"} if gzipped else {}
        return self.request("POST", signal.path, gzip.compress(body, 1) if gzipped else body, {**encoding, **headers})

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] = {}) -> Reply:
        """Send any request."""
        self.connection.request(method, path, body, {"Content-Type": self.content_type, **headers})
        answer = self.connection.getresponse()
        content = answer.read()
        received = {name.lower(): value for name, value in answer.getheaders()}
        status = None if answer.status < 400 or method == "HEAD" else _http_status(content, received)
        return Reply(answer.status, content, received, status)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def _http_status(content: bytes, headers: Mapping[str, str]) -> status_pb2.Status:
    if headers.get("content-type", "").startswith(JSON):
        return json_format.Parse(content, status_pb2.Status())
    status: status_pb2.Status = status_pb2.Status.FromString(content)
    return status


def otlp_json(message: Any) -> bytes:
    """Return the OTLP/JSON form: proto3 JSON, but ids in hex and enums as numbers."""
    plain = json_format.MessageToDict(message, use_integers_for_enums=True)
    return json.dumps(_ids_in_hex(plain)).encode()


def _ids_in_hex(value: Any) -> Any:
    import base64

    if isinstance(value, list):
        return [_ids_in_hex(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_id = {"traceId", "spanId", "parentSpanId"}
    return {
        key: base64.b64decode(item).hex() if key in is_id and isinstance(item, str) else _ids_in_hex(item)
        for key, item in value.items()
    }
