"""From a real spool to real receivers that are down, slow, hang, refuse, lie, or come back later."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from tailspan_collector.forward import Forwarder, from_table, stop_all
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import LOGS, METRICS
from tailspan_collector.spool import Spool
from tests.collector.forward.conftest import Start, no_clickhouse
from tests.support.destinations import GrpcDestination, HttpDestination, count, wait_for
from tests.support.otlp_messages import request_with_stages
from tests.support.spools import drain, open_spool

BOTH = pytest.mark.parametrize("kind", [GrpcDestination, HttpDestination])
Destination = type[GrpcDestination] | type[HttpDestination]


def payloads(number: int, size: int = 500) -> list[bytes]:
    """Return requests that differ."""
    return [os.urandom(size) for _ in range(number)]


def append(spool: Spool, requests: list[bytes]) -> None:
    """Put requests into the spool, from several threads as receivers do."""
    with ThreadPoolExecutor(8) as receivers:
        assert all(receivers.map(spool.append, requests))


@BOTH
def test_every_request_arrives_once_with_the_same_bytes(
    kind: Destination, spool: Spool, start: Start, metrics: Metrics
) -> None:
    """What is in the spool reaches the destination byte for byte, once while nothing fails, and is counted."""
    requests = [*payloads(500), request_with_stages(3), b""]
    with kind() as receiver:
        start(receiver.url, name="apm")
        append(spool, requests)
        assert sorted(receiver.inbox.wait(len(requests))) == sorted(requests)
        wait_for(lambda: count(metrics, "forward_lag_bytes", destination="apm", signal="traces") == 0)
        assert sorted(receiver.inbox.taken) == sorted(requests)
    assert count(metrics, "forwarded_requests_total", destination="apm", signal="traces") == len(requests)
    size = sum(map(len, requests))
    assert count(metrics, "forwarded_bytes_total", destination="apm", signal="traces") == size


def test_each_signal_goes_its_own_way(spool: Spool, metrics: Metrics, tmp_path: Path) -> None:
    """A destination that takes several signals gets each from its own spool, at its own path."""
    spools = {"traces": spool}
    for signal in (METRICS, LOGS):
        spools[signal.name] = open_spool(tmp_path / signal.name, signal=signal, metrics=metrics)
    with HttpDestination() as receiver:
        destination = from_table({"endpoint": receiver.url, "signals": ["traces", "metrics", "logs"]})
        forwarder = Forwarder(destination, spools, no_clickhouse, metrics, tmp_path)
        forwarder.start()
        for name, opened in spools.items():
            opened.append(name.encode())
        receiver.inbox.wait(3)
        forwarder.stop(5)
        got = dict(zip(receiver.inbox.targets, receiver.inbox.taken, strict=True))
    assert got == {"/v1/traces": b"traces", "/v1/metrics": b"metrics", "/v1/logs": b"logs"}
    spools["metrics"].close()
    spools["logs"].close()


@BOTH
def test_a_destination_that_comes_back_gets_everything(
    kind: Destination, spool: Spool, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """What came while nobody listened is sent later; the outage is told once, not once a try."""
    with kind() as receiver:
        url, port = receiver.url, receiver.port
    requests = payloads(200)
    with caplog.at_level(logging.WARNING):
        start(url, name="apm")
        append(spool, requests)
        time.sleep(2)
        with kind(port=port) as receiver:
            assert set(receiver.inbox.wait(len(requests))) == set(requests)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "apm does not take traces, trying again until it does",
        "apm takes traces again",
    ]


def test_one_that_is_down_and_one_that_hangs_delay_nobody(spool: Spool, start: Start) -> None:
    """Beside a destination that is down, one that never answers and one that is slow, another gets all at once, and so
    does the writer.
    """
    release = threading.Event()

    def hang(payload: bytes, _: grpc.ServicerContext) -> bytes:
        release.wait(30)
        return b""

    def slow(payload: bytes) -> tuple[int, dict[str, str], bytes]:
        release.wait(1)
        return 200, {}, b""

    with GrpcDestination(hang) as hanging, HttpDestination(slow) as slow_one, GrpcDestination() as healthy:
        start("http://127.0.0.1:9", name="down")
        start(hanging.url, name="hanging", timeout=20)
        start(slow_one.url, name="slow")
        start(healthy.url, name="healthy")
        requests = payloads(300)
        started = time.monotonic()
        append(spool, requests)
        assert sorted(drain(spool)) == sorted(requests)
        assert sorted(healthy.inbox.wait(300)) == sorted(requests)
        assert time.monotonic() - started < 5
        assert len(slow_one.inbox.taken) < 60
        assert hanging.inbox.taken == []
        release.set()


@BOTH
def test_a_refused_request_is_dropped_and_counted_and_the_others_go_on(
    kind: Destination, spool: Spool, start: Start, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """A permanent error costs that request for that destination only; the log names the reason, never the payload."""

    def grpc_refuse(payload: bytes, context: grpc.ServicerContext) -> bytes:
        if payload.startswith(b"bad"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such field")
        return b""

    def http_refuse(payload: bytes) -> tuple[int, dict[str, str], bytes]:
        return (400, {}, b"") if payload.startswith(b"bad") else (200, {}, b"")

    requests = payloads(20)
    with kind() as receiver, GrpcDestination() as other:
        receiver.behave = grpc_refuse if isinstance(receiver, GrpcDestination) else http_refuse  # type: ignore[assignment]
        start(receiver.url, name="picky")
        start(other.url, name="other")
        bad = [b"bad-secret-1", b"bad-secret-2"]
        append(spool, requests[:10] + bad + requests[10:])
        assert sorted(receiver.inbox.wait(20)) == sorted(requests)
        other.inbox.wait(22)
        reason = "grpc_invalid_argument" if kind is GrpcDestination else "http_400"
        labels = {"destination": "picky", "signal": "traces", "reason": reason}
        wait_for(lambda: count(metrics, "forward_dropped_requests_total", **labels) == 2)
        assert sum(payload.startswith(b"bad") for payload in receiver.inbox.asked) == 2
    assert reason in caplog.text
    assert "secret" not in caplog.text


def test_requests_that_always_fail_do_not_block_the_others(spool: Spool, start: Start, metrics: Metrics) -> None:
    """Many requests in a row that a destination answers with 500 are given up on the evidence that it takes others."""

    def behave(payload: bytes) -> tuple[int, dict[str, str], bytes]:
        return (500, {}, b"") if payload.startswith(b"poison") else (200, {}, b"")

    good = payloads(100)
    with HttpDestination(behave) as receiver:
        start(receiver.url, name="apm", requests_in_flight=2)
        for number in range(5):
            spool.append(b"poison %d" % number)
        append(spool, good[:50])
        receiver.inbox.wait(50)
        labels = {"destination": "apm", "signal": "traces", "reason": "http_500"}
        deadline = time.monotonic() + 90
        while count(metrics, "forward_dropped_requests_total", **labels) < 5:
            assert time.monotonic() < deadline
            spool.append(os.urandom(100))
            time.sleep(0.05)
        append(spool, good[50:])
        wait_for(lambda: set(good) <= set(receiver.inbox.taken))
        tries = [sum(asked == b"poison %d" % number for asked in receiver.inbox.asked) for number in range(5)]
    assert max(tries) <= 8


def test_a_bad_request_at_the_end_of_a_segment_is_given_up(tmp_path: Path, metrics: Metrics) -> None:
    """The evidence that a destination takes others may lie in the next segment of the spool."""

    def behave(payload: bytes) -> tuple[int, dict[str, str], bytes]:
        return (500, {}, b"") if payload.startswith(b"poison") else (200, {}, b"")

    spool = open_spool(tmp_path / "spool", metrics=metrics, segment_bytes=4096)
    with HttpDestination(behave) as receiver:
        forwarder = Forwarder(
            from_table({"endpoint": receiver.url, "name": "apm"}), {"traces": spool}, no_clickhouse, metrics, tmp_path
        )
        spool.append(b"poison" + bytes(5000))  # the next request begins a new segment
        good = payloads(20)
        append(spool, good)
        assert len(list((tmp_path / "spool").glob("*.log"))) > 1
        forwarder.start()
        receiver.inbox.wait(20)
        labels = {"destination": "apm", "signal": "traces", "reason": "http_500"}
        deadline = time.monotonic() + 90
        while count(metrics, "forward_dropped_requests_total", **labels) < 1:
            assert time.monotonic() < deadline
            spool.append(os.urandom(100))
            time.sleep(0.05)
        forwarder.stop(1)
        assert set(good) <= set(receiver.inbox.taken)
    spool.close()


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_a_destination_that_refuses_everything_loses_nothing(status: int, spool: Spool, start: Start) -> None:
    """A wrong token, a wrong path or an ill backend keep the data until someone has mended it."""
    with HttpDestination(lambda _: (status, {}, b"")) as receiver:
        start(receiver.url)
        requests = payloads(50)
        append(spool, requests)
        receiver.inbox.wait_asked(4)
        receiver.behave = lambda _: (200, {}, b"")
        assert set(receiver.inbox.wait(50, timeout_s=30)) == set(requests)


def test_retry_info_is_honoured(spool: Spool, start: Start) -> None:
    """A destination that asks for 2 s is asked nothing for 2 s, not even other requests, and then gets them all."""
    asked_at: list[float] = []

    def behave(_: bytes, context: grpc.ServicerContext) -> bytes:
        asked_at.append(time.monotonic())
        if len(asked_at) == 1:
            detail = Any()
            detail.Pack(RetryInfo(retry_delay=Duration(seconds=2)))
            status = Status(code=8, details=[detail]).SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", status),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        return b""

    with GrpcDestination(behave) as receiver:
        start(receiver.url, requests_in_flight=1)
        append(spool, payloads(10))
        receiver.inbox.wait(10)
    assert asked_at[1] - asked_at[0] >= 2


def test_retry_after_is_honoured(spool: Spool, start: Start) -> None:
    """The same over HTTP, where 429 or 503 carry the header Retry-After."""
    asked_at: list[float] = []

    def behave(_: bytes) -> tuple[int, dict[str, str], bytes]:
        asked_at.append(time.monotonic())
        return (429, {"Retry-After": "2"}, b"") if len(asked_at) == 1 else (200, {}, b"")

    with HttpDestination(behave) as receiver:
        start(receiver.url, requests_in_flight=1)
        append(spool, payloads(10))
        receiver.inbox.wait(10)
    assert asked_at[1] - asked_at[0] >= 2


def test_partial_success_is_counted_and_told(
    spool: Spool, start: Start, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """A request of which the destination rejects parts is not sent again; the count and its message are told."""
    with GrpcDestination() as receiver:
        response = METRICS.response()
        response.partial_success.rejected_data_points = 3
        response.partial_success.error_message = "clock is off"
        receiver.behave = lambda *_: response.SerializeToString()
        start(receiver.url, name="apm")
        spool.append(b"x")
        labels = {"destination": "apm", "signal": "traces", "reason": "partial_success"}
        wait_for(lambda: count(metrics, "forward_dropped_requests_total", **labels) == 1)
        assert receiver.inbox.asked == [b"x"]
    assert "3 item(s) rejected by the destination: clock is off" in caplog.text


def test_several_requests_are_in_flight(spool: Spool, start: Start) -> None:
    """A destination with a long way does not limit the rate to one request a round trip."""
    now, most, lock = 0, 0, threading.Lock()

    def behave(_: bytes, __: grpc.ServicerContext) -> bytes:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.1)
        with lock:
            now -= 1
        return b""

    with GrpcDestination(behave) as receiver:
        start(receiver.url, requests_in_flight=8)
        append(spool, payloads(80))
        receiver.inbox.wait(80)
    assert most == 8


def test_what_is_further_behind_than_the_bound_is_skipped_and_counted(
    spool: Spool, start: Start, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond its bound in bytes a destination loses the oldest requests, which is counted; it gets the newest."""
    with GrpcDestination() as receiver:
        url, port = receiver.url, receiver.port
    start(url, name="apm", most_behind_bytes=1 << 20)
    requests = payloads(60, size=100_000)
    append(spool, requests)
    drain(spool)
    newest = os.urandom(100)
    spool.append(newest)
    with GrpcDestination(port=port) as receiver:
        wait_for(lambda: newest in receiver.inbox.taken)
        taken = set(receiver.inbox.taken) - {newest}
    dropped = count(metrics, "forward_dropped_requests_total", destination="apm", signal="traces", reason="bound")
    assert taken < set(requests)
    # What was skipped while it was on its way may still arrive.
    assert len(requests) - len(taken) <= dropped < len(requests)
    assert "apm will not get" in caplog.text


def test_what_is_older_than_the_bound_is_given_up(spool: Spool, start: Start, metrics: Metrics) -> None:
    """Beyond its bound in age a request is given up even while it is tried again and again."""
    with HttpDestination(lambda _: (503, {}, b"")) as receiver:
        start(receiver.url, name="apm", most_behind_seconds=2)
        append(spool, payloads(5))
        wait_for(
            lambda: (
                sum(
                    count(metrics, "forward_dropped_requests_total", destination="apm", signal="traces", reason=reason)
                    for reason in ("too_old", "bound")
                )
                >= 5
            )
        )
        receiver.behave = lambda _: (200, {}, b"")
        spool.append(b"new")
        receiver.inbox.wait(1)
        assert receiver.inbox.taken == [b"new"]


def test_stopping_sends_what_is_left_and_keeps_the_place(spool: Spool, start: Start) -> None:
    """A stop delivers what the destination takes within the grace; the next start goes on behind it."""
    first, second = payloads(300), payloads(300)
    with GrpcDestination() as receiver:
        forwarder = start(receiver.url, name="apm")
        append(spool, first)
        forwarder.stop(10)
        assert sorted(receiver.inbox.taken) == sorted(first)
        append(spool, second)
    assert spool.unread_bytes() > 0


def test_a_restart_goes_on_where_the_last_one_stopped(tmp_path: Path, metrics: Metrics) -> None:
    """After a clean stop in the middle of an outage the next process sends the rest, and nothing twice."""
    sent: list[bytes] = []

    def run(receiver: GrpcDestination, requests: list[bytes], until: int, grace_s: float) -> None:
        spool = open_spool(tmp_path / "spool")
        forwarder = Forwarder(
            from_table({"endpoint": receiver.url, "name": "apm"}), {"traces": spool}, no_clickhouse, Metrics(), tmp_path
        )
        forwarder.start()
        append(spool, requests)
        receiver.inbox.wait(until)
        forwarder.stop(grace_s)
        spool.close()
        sent.extend(receiver.inbox.taken)

    taken = 0

    def take_forty(_: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal taken
        taken += 1
        if taken > 40:
            context.abort(grpc.StatusCode.UNAVAILABLE, "full")
        return b""

    requests = payloads(100)
    with GrpcDestination(take_forty) as receiver:
        run(receiver, requests, 40, grace_s=5)
    with GrpcDestination() as receiver:
        run(receiver, [], 60, grace_s=5)
    assert set(sent) == set(requests)
    # At most what was taken behind the first request that was not: those in flight.
    assert len(sent) - len(requests) <= 3


def test_stopping_waits_for_no_more_than_one_grace(start: Start, spool: Spool) -> None:
    """With a destination that fails a stop takes no grace at all; with some that hang, one grace for all of them."""
    release = threading.Event()

    def hang(_: bytes, __: grpc.ServicerContext) -> bytes:
        release.wait(20)
        return b""

    with GrpcDestination(hang) as hanging:
        down = start("http://127.0.0.1:9")
        hung = [start(hanging.url, name=name, timeout=60) for name in ("a", "b", "c")]
        append(spool, payloads(20))
        time.sleep(0.7)
        for forwarders, most_s in (([down], 1.5), (hung, 4)):
            started = time.monotonic()
            stop_all(forwarders, 2.0)
            assert time.monotonic() - started < most_s
        release.set()


def test_a_spool_that_closes_costs_no_processor(spool: Spool, start: Start) -> None:
    """Between the end of receiving and its own stop a destination waits without turning in circles."""
    with GrpcDestination() as receiver:
        start(receiver.url)
        spool.stop_accepting()
        used = time.process_time()
        time.sleep(1)
        assert time.process_time() - used < 0.3


def test_a_destination_that_was_never_started_can_be_stopped(spool: Spool, metrics: Metrics, tmp_path: Path) -> None:
    """A collector whose start fails halfway ends all that it had made, with a message of its own."""
    destination = from_table({"endpoint": "grpc://127.0.0.1:9"})
    Forwarder(destination, {"traces": spool}, no_clickhouse, metrics, tmp_path).stop(1)
