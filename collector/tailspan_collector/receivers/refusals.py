"""Why a request is refused: what its sender is told over gRPC and over HTTP, and whether it should send it again.

Refusal
├── BadData          INVALID_ARGUMENT    400   it is no OTLP: do not retry
├── TooLarge         RESOURCE_EXHAUSTED  413   without RetryInfo: do not retry
├── Unauthenticated  UNAUTHENTICATED     401   no token, or none that is known: do not retry
├── UnknownEncoding  UNIMPLEMENTED       415   compressed or written in a way that is not understood: do not retry
├── Slow             DEADLINE_EXCEEDED   408   its bytes did not come in time
├── Busy             UNAVAILABLE         429   too much is in memory: retry after a while
└── NotNow           UNAVAILABLE         503   the spool is full or the collector stops: retry after a while

Source: opentelemetry-proto `docs/specification.md`, "Failures" and "OTLP/HTTP Throttling".
"""

from __future__ import annotations

import math
from typing import ClassVar

import grpc
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.duration_pb2 import Duration  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import BadRequest, RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]


class Refusal(Exception):  # noqa: N818 (an answer, not always the sender's error)
    """A request that is not taken; the message goes to its sender."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        """Seconds after which to send it again; None = the sender is not told to."""

    def status(self) -> bytes:
        """Return the `google.rpc.Status` in protobuf."""
        encoded: bytes = self._status().SerializeToString()
        return encoded

    def status_json(self) -> bytes:
        """Return the `google.rpc.Status` in JSON."""
        encoded: bytes = json_format.MessageToJson(self._status(), indent=None).encode()
        return encoded

    def retry_after(self) -> int | None:
        """Return the value of the header Retry-After, whole seconds."""
        return None if self.retry_after_s is None else max(1, math.ceil(self.retry_after_s))

    def details(self) -> list[Message]:
        """Return what goes into the details of the `Status`."""
        if self.retry_after_s is None:
            return []
        delay = Duration()
        delay.FromNanoseconds(int(self.retry_after_s * 1e9))
        return [RetryInfo(retry_delay=delay)]

    def _status(self) -> Status:
        status = Status(code=self.code.value[0], message=self.message)
        for detail in self.details():
            status.details.add().Pack(detail)
        return status


class BadData(Refusal):
    """What was sent is no OTLP request."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400

    def details(self) -> list[Message]:
        """Return a `BadRequest` that describes it."""
        return [BadRequest(field_violations=[BadRequest.FieldViolation(description=self.message)])]


class TooLarge(Refusal):
    """The request is larger than allowed, as sent or after decompression."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 413


class Unauthenticated(Refusal):
    """The request carries no token that is known."""

    code = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401


class UnknownEncoding(Refusal):
    """The media type or the compression is none that a receiver understands."""

    code = grpc.StatusCode.UNIMPLEMENTED
    http_status = 415


class Slow(Refusal):
    """The request's bytes did not come in time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 408


class Busy(Refusal):
    """Too many bytes are in memory."""

    code = grpc.StatusCode.UNAVAILABLE
    http_status = 429


class NotNow(Refusal):
    """The spool takes nothing, or the collector stops."""

    code = grpc.StatusCode.UNAVAILABLE
    http_status = 503
