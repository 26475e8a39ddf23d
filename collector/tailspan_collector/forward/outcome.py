"""What became of one try to send a request; what to do next is part of the type.

    Taken     the destination has it; it may have left parts out (`partial_success`)
    Failed    try again later. `is_clear`: the specification says so (503, UNAVAILABLE, a time-out, …). Otherwise it may
              be the request's own fault or the destination's (500, a login that is refused): while nothing else gets
              through either, it is the destination's, and the request waits; if others do, it is soon given up
    Refused   the answer is about this very request (400, INVALID_ARGUMENT, too large): it will never be taken

Difference to the OTLP specification, which has a client drop data on every answer that it does not call retryable: a
wrong token or a backend that answers 500 for an hour says nothing about the data, so they are kept (see `Failed`).

Source: opentelemetry-proto `docs/specification.md`, "Failures" and "OTLP/HTTP Response".
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Iterable
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tailspan_collector.signals import Signal

LONGEST_RETRY_AFTER_S = 3600.0  # what a destination may ask for; more would be an accident
_DETAIL = 200
_CODE = grpc.StatusCode
_GRPC_RETRYABLE = {
    *(_CODE.CANCELLED, _CODE.DEADLINE_EXCEEDED, _CODE.ABORTED),
    *(_CODE.OUT_OF_RANGE, _CODE.UNAVAILABLE, _CODE.DATA_LOSS),
}
_GRPC_REFUSED = {_CODE.INVALID_ARGUMENT, _CODE.ALREADY_EXISTS, _CODE.FAILED_PRECONDITION}
_HTTP_RETRYABLE = {429, 502, 503, 504}
_HTTP_REFUSED = {400, 411, 413, 414, 415, 422, 431}
_BAD_LOGIN = {401, 403, 407}


@dataclass(frozen=True, slots=True)
class Taken:
    """The destination took the request, except for `rejected` spans, points or log records."""

    rejected: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Not taken, try again; not before `retry_after_s`, if the destination said so."""

    reason: str
    detail: str = ""
    is_clear: bool = False
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Will never be taken."""

    reason: str
    detail: str = ""


Outcome = Taken | Failed | Refused


def taken(signal: Signal, body: bytes) -> Taken:
    """Read the response to a request that was taken; one that is no OTLP response counts as plain success."""
    if not body:
        return Taken()
    try:
        partial = signal.response.FromString(body).partial_success
    except DecodeError:
        return Taken()
    return Taken(max(0, int(getattr(partial, signal.rejected_field))), _short(partial.error_message))


def grpc_failure(code: grpc.StatusCode, detail: str, trailers: Iterable[tuple[str, str | bytes]]) -> Failed | Refused:
    """Judge a gRPC status."""
    reason, text = f"grpc_{code.name.lower()}", _short(detail)
    retry_after_s = _retry_info_s(trailers)
    if retry_after_s is not None and code in (_CODE.UNAVAILABLE, _CODE.RESOURCE_EXHAUSTED):
        return Failed(reason, text, is_clear=True, retry_after_s=retry_after_s)
    if code is _CODE.RESOURCE_EXHAUSTED and any(word in text for word in ("larger than max", "exceeds maximum")):
        return Refused(reason, text)
    if code in _GRPC_REFUSED:
        return Refused(reason, text)
    return Failed(reason, text, is_clear=code in _GRPC_RETRYABLE)


def http_failure(status: int, retry_after: str | None, body: bytes) -> Failed | Refused:
    """Judge an HTTP status that is no success."""
    reason = f"http_{status}"
    if status in _BAD_LOGIN:
        return Failed(reason, "the destination refuses the login; check its headers")
    detail = _status_message(body)
    if status in _HTTP_REFUSED:
        return Refused(reason, detail)
    is_retryable = status in _HTTP_RETRYABLE
    return Failed(reason, detail, is_retryable, _retry_after_s(retry_after) if is_retryable else None)


def _status_message(body: bytes) -> str:
    try:
        message: str = Status.FromString(body).message
    except DecodeError:
        message = ""
    return _short(message)


def _short(text: str) -> str:
    """Return text of a destination fit for a log: one line, printable, not long."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:_DETAIL])


def _retry_info_s(trailers: Iterable[tuple[str, str | bytes]]) -> float | None:
    for key, value in trailers:
        if key != "grpc-status-details-bin":
            continue
        try:
            details = Status.FromString(value).details
            for item in details:
                if item.Is(RetryInfo.DESCRIPTOR):
                    delay = RetryInfo.FromString(item.value).retry_delay
                    return _within_reason(delay.seconds + delay.nanos / 1e9)
        except DecodeError:
            return None
    return None


def _retry_after_s(value: str | None) -> float | None:
    """Read Retry-After: seconds, or a date."""
    if value is None:
        return None
    try:
        return _within_reason(float(value))
    except ValueError:
        pass
    try:
        return _within_reason(email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _within_reason(seconds: float) -> float | None:
    # `not >=` also catches NaN.
    return None if not seconds >= 0 else min(seconds, LONGEST_RETRY_AFTER_S)
