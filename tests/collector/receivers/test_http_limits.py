"""Senders over HTTP that are slow, idle, too many or gone, and the end of the receiver."""

from __future__ import annotations

import threading
import time

import pytest

from tailspan.errors import UserError
from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers.grpc import GrpcReceiver
from tailspan_collector.receivers.http import HttpReceiver
from tailspan_collector.receivers.settings import ReceiverSettings
from tailspan_collector.signals import SIGNALS
from tests.collector.receivers.clients import PROTOBUF, RawHttp, post
from tests.collector.receivers.receiving import MemoryIntake, Receiving, receiving
from tests.support.otlp_messages import request_with_stages

REQUEST = request_with_stages(3)


def test_slow_headers_are_408() -> None:
    """A sender that trickles its headers is cut off in time, whether or not bytes keep coming."""
    with (
        receiving(slow_seconds=0.6) as running,
        RawHttp(running.http.port) as trickling,
        RawHttp(running.http.port) as silent,
    ):
        started = time.monotonic()
        for byte in b"POST /v1/tr":
            trickling.send(bytes([byte]))
            time.sleep(0.05)
        assert trickling.response().status == 408
        assert trickling.closed_within(2)
        assert silent.closed_within(2)
        assert time.monotonic() - started < 2


def test_slow_headers_of_a_later_request_are_408() -> None:
    """The limit for headers also holds on a connection that has served a request."""
    headers = {"content-type": PROTOBUF, "content-length": str(len(REQUEST))}
    with receiving(slow_seconds=0.4) as running, RawHttp(running.http.port) as connection:
        connection.request(headers, REQUEST + b"POST /v1")
        assert connection.response().status == 200
        assert connection.response().status == 408
        assert connection.closed_within(2)


def test_slow_bodies_are_408() -> None:
    """A body that trickles is given up in time; its bytes are not stored and its room is free again."""
    with receiving(slow_seconds=0.6) as running, RawHttp(running.http.port) as connection:
        connection.request({"content-type": PROTOBUF, "content-length": str(len(REQUEST))})
        for byte in REQUEST[:9]:
            connection.send(bytes([byte]))
            time.sleep(0.05)
        response = connection.response()
        assert (response.status, response.error().code) == (408, 4)
        assert connection.closed_within(2)
        assert running.traces.requests == []
        assert running.http._workers._room.free_bytes == 512 << 20


def test_idle_connections_are_closed() -> None:
    """A connection without a request is closed after its time, and not before."""
    headers = {"content-type": PROTOBUF, "content-length": str(len(REQUEST))}
    with receiving(idle_seconds=0.8, slow_seconds=0.2) as running, RawHttp(running.http.port) as connection:
        connection.request(headers, REQUEST)
        assert connection.response().status == 200
        time.sleep(0.5)
        connection.request(headers, REQUEST)
        assert connection.response().status == 200
        assert connection.closed_within(3)


def test_connections_are_limited() -> None:
    """A connection beyond the limit is told to come later; those that are open go on."""
    headers = {"content-type": PROTOBUF, "content-length": str(len(REQUEST))}
    with receiving(max_connections=2) as running, RawHttp(running.http.port) as first, RawHttp(running.http.port):
        first.request(headers, REQUEST)
        assert first.response().status == 200
        response = post(running.http.port, REQUEST)
        assert (response.status, response.headers["retry-after"]) == (503, "5")
        first.request(headers, REQUEST)
        assert first.response().status == 200
        gauge = running.metrics.registry.get_sample_value("tailspan_collector_connections", {"transport": "http"})
        assert gauge == 2


def test_a_sender_that_leaves_is_counted_and_frees_its_room(receivers: Receiving) -> None:
    """A connection that breaks in the middle of a body stores nothing."""
    with RawHttp(receivers.http.port) as connection:
        connection.request({"content-type": PROTOBUF, "content-length": "1000"}, REQUEST[:100])
    deadline = time.monotonic() + 5
    while receivers.count("http", "499") == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert receivers.count("http", "499") == 1
    assert receivers.http._workers._room.free_bytes == 512 << 20


def test_shutdown_ends_requests_and_closes_connections() -> None:
    """A request under way at shutdown is acknowledged; idle connections are closed; the end is in time."""
    headers = {"content-type": PROTOBUF, "content-length": str(len(REQUEST))}
    with receiving() as running, RawHttp(running.http.port) as busy, RawHttp(running.http.port) as idle:
        running.traces.may_go_on.clear()
        busy.request(headers, REQUEST)
        assert running.traces.entered.wait(5)
        started = time.monotonic()
        stopping = threading.Thread(target=running.http.stop, args=(5,))
        stopping.start()
        assert idle.closed_within(2)
        running.traces.may_go_on.set()
        assert busy.response().status == 200
        stopping.join()
        assert time.monotonic() - started < 3
        with pytest.raises(ConnectionRefusedError):
            RawHttp(running.http.port)


def test_a_request_that_comes_during_shutdown_is_503() -> None:
    """Requests whose bodies arrive after the shutdown began are asked to come back."""
    with receiving() as running, RawHttp(running.http.port) as late:
        late.request({"content-type": PROTOBUF, "content-length": str(len(REQUEST))}, REQUEST[:10])
        time.sleep(0.2)
        stopping = threading.Thread(target=running.http.stop, args=(5,))
        stopping.start()
        time.sleep(0.2)
        late.send(REQUEST[10:])
        response = late.response()
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        stopping.join()


def test_shutdown_does_not_wait_longer_than_its_grace() -> None:
    """A disk that hangs does not hold the end back beyond the stated time, and the sender is asked to come back."""
    with receiving() as running, RawHttp(running.http.port) as connection:
        running.traces.may_go_on.clear()
        connection.request({"content-type": PROTOBUF, "content-length": str(len(REQUEST))}, REQUEST)
        assert running.traces.entered.wait(5)
        started = time.monotonic()
        running.http.stop(0.3)
        assert time.monotonic() - started < 2
        response = connection.response()
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert connection.closed_within(2)


def test_receivers_can_be_stopped_before_they_start() -> None:
    """A collector whose start fails half way leaves no thread and no port behind."""
    settings = ReceiverSettings(grpc_port=0, http_port=0)
    intakes = {signal.name: MemoryIntake() for signal in SIGNALS}
    before = threading.active_count()
    for kind in (GrpcReceiver, HttpReceiver):
        receiver = kind(settings, intakes, Metrics())
        receiver.stop(1)
        receiver.stop(1)
        with pytest.raises(ConnectionRefusedError):
            RawHttp(receiver.port)
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", [GrpcReceiver, HttpReceiver])
def test_a_port_that_is_taken_is_named(kind: type[GrpcReceiver] | type[HttpReceiver]) -> None:
    """A port in use stops the start with the flag that chooses another."""
    intakes = {signal.name: MemoryIntake() for signal in SIGNALS}
    with receiving() as running:
        settings = ReceiverSettings(grpc_port=running.grpc.port, http_port=running.http.port)
        with pytest.raises(UserError, match=r"in use.*--otlp-(http-)?port"):
            kind(settings, intakes, Metrics())
