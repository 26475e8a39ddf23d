"""What each answer of a destination means."""

from __future__ import annotations

import email.utils
import time

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from tailspan_collector.forward.outcome import (
    LONGEST_RETRY_AFTER_S,
    Failed,
    Refused,
    Taken,
    grpc_failure,
    http_failure,
    taken,
)
from tailspan_collector.signals import SIGNALS, TRACES

CODE = grpc.StatusCode
RETRYABLE = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
REFUSED = {"INVALID_ARGUMENT", "ALREADY_EXISTS", "FAILED_PRECONDITION"}


def retry_info(seconds: int, nanos: int = 0) -> list[tuple[str, str | bytes]]:
    """Return the trailers that carry a RetryInfo."""
    detail = Any()
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos)))
    return [("x", "y"), ("grpc-status-details-bin", Status(details=[Any(), detail]).SerializeToString())]


@pytest.mark.parametrize("code", [code for code in CODE if code is not CODE.OK])
def test_grpc_status_decides_between_later_and_never(code: grpc.StatusCode) -> None:
    """The retryable codes of the OTLP specification are tried again, those about the request itself are not; all others
    are tried again until it is clear that it is this request's fault.
    """
    outcome = grpc_failure(code, "why", ())
    if code.name in REFUSED:
        assert outcome == Refused(f"grpc_{code.name.lower()}", "why")
    else:
        assert outcome == Failed(f"grpc_{code.name.lower()}", "why", is_clear=code.name in RETRYABLE)


@pytest.mark.parametrize("code", [CODE.UNAVAILABLE, CODE.RESOURCE_EXHAUSTED])
def test_retry_info_is_read(code: grpc.StatusCode) -> None:
    """A RetryInfo says how long to wait, and makes RESOURCE_EXHAUSTED retryable."""
    outcome = grpc_failure(code, "", retry_info(2, 500_000_000))
    assert outcome == Failed(f"grpc_{code.name.lower()}", "", is_clear=True, retry_after_s=2.5)


def test_a_message_that_is_too_large_is_refused() -> None:
    """A request above the destination's limit will never be taken, so it is not tried again."""
    outcome = grpc_failure(CODE.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5 vs. 4)", ())
    assert isinstance(outcome, Refused)


@pytest.mark.parametrize("status", [400, 411, 413, 414, 415, 422, 431])
def test_http_status_about_the_request_is_refused(status: int) -> None:
    """Bad, too large or unsupported: never again; the Status message in the body says why."""
    outcome = http_failure(status, "1", Status(message="no\nsuch thing").SerializeToString())
    assert outcome == Refused(f"http_{status}", "no such thing")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_http_status_that_is_retryable(status: int) -> None:
    """The four retryable codes are, and honour Retry-After."""
    assert http_failure(status, "7", b"") == Failed(f"http_{status}", "", is_clear=True, retry_after_s=7)


@pytest.mark.parametrize("status", [301, 308, 401, 403, 404, 405, 407, 408, 500, 501])
def test_http_status_that_may_be_the_destination(status: int) -> None:
    """A redirect, a refused login, a wrong path or an internal error keep the data, but are no clear "later"."""
    outcome = http_failure(status, "7", b"")
    assert isinstance(outcome, Failed)
    assert (outcome.is_clear, outcome.retry_after_s) == (False, None)


def test_retry_after_as_a_date() -> None:
    """Retry-After may be a date; one in the past means nothing."""
    soon = http_failure(503, email.utils.formatdate(time.time() + 60, usegmt=True), b"")
    assert isinstance(soon, Failed)
    assert soon.retry_after_s is not None
    assert 55 < soon.retry_after_s <= 60
    past = http_failure(503, email.utils.formatdate(time.time() - 60, usegmt=True), b"")
    assert isinstance(past, Failed)
    assert past.retry_after_s is None


@pytest.mark.parametrize("value", ["", "-1", "nan", "soon", "Mon, 99 Foo 2026 00:00:00 GMT", "inf", "1e99"])
def test_retry_after_that_makes_no_sense(value: str) -> None:
    """A Retry-After that cannot be meant is ignored or cut to an hour."""
    outcome = http_failure(503, value, b"")
    assert isinstance(outcome, Failed)
    assert outcome.retry_after_s in (None, LONGEST_RETRY_AFTER_S)


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_partial_success_is_read(signal: object) -> None:
    """The count and the message of a partial success are kept, under the field's name of each signal."""
    assert signal in SIGNALS
    response = signal.response()  # type: ignore[attr-defined]
    setattr(response.partial_success, signal.rejected_field, 3)  # type: ignore[attr-defined]
    response.partial_success.error_message = "too old"
    assert taken(signal, response.SerializeToString()) == Taken(3, "too old")  # type: ignore[arg-type]


@given(st.binary(max_size=200), st.sampled_from([200, 302, 400, 401, 500, 503]), st.text(max_size=40))
def test_garbage_is_judged_without_an_error(body: bytes, status: int, header: str) -> None:
    """Whatever bytes come as a response, trailer or header, there is an outcome, and its text fits one log line."""
    assert isinstance(taken(TRACES, body), Taken)
    for outcome in (
        http_failure(status, header, body),
        grpc_failure(CODE.UNAVAILABLE, header, [("grpc-status-details-bin", body)]),
    ):
        assert outcome.detail.isprintable()
