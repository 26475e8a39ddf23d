"""Senders over gRPC that are slow, silent or too many, the end of the receiver, health and reflection."""

from __future__ import annotations

import gzip
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tailspan_collector.signals import SIGNALS, TRACES
from tests.collector.receivers.clients import export, filler, open_channel, refused
from tests.collector.receivers.receiving import LIMIT, Receiving, receiving
from tests.support.collector import wait_until
from tests.support.otlp_messages import request_with_stages

REQUEST = request_with_stages(3)


def test_shutdown_refuses_new_and_ends_old_requests() -> None:
    """A request under way at shutdown is acknowledged, one that comes then is asked to come back."""
    with receiving() as running:
        running.traces.may_go_on.clear()
        answers: list[bytes] = []
        with open_channel(running.grpc.port) as opened:
            call = opened.unary_unary(f"/{TRACES.service}/Export")
            under_way = threading.Thread(target=lambda: answers.append(call(REQUEST, timeout=10)))
            under_way.start()
            assert running.traces.entered.wait(5)
            stopping = threading.Thread(target=running.grpc.stop, args=(5,))
            started = time.monotonic()
            stopping.start()
            time.sleep(0.2)
            failure = refused(running.grpc.port, request_with_stages(1))
            running.traces.may_go_on.set()
            under_way.join()
            stopping.join()
        assert answers == [b""]
        assert failure.code is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - started < 5


def test_shutdown_does_not_wait_longer_than_its_grace() -> None:
    """A disk that hangs does not hold the end back beyond the stated time."""
    with receiving() as running:
        running.traces.may_go_on.clear()
        failures: list[grpc.StatusCode] = []
        thread = threading.Thread(target=lambda: failures.append(refused(running.grpc.port, REQUEST).code))
        thread.start()
        assert running.traces.entered.wait(5)
        started = time.monotonic()
        running.grpc.stop(0.3)
        assert time.monotonic() - started < 3
        thread.join()
        assert failures[0] in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def never() -> Iterator[bytes]:
    """A request body that does not come."""
    time.sleep(8)
    yield b""


def slow_calls(running: Receiving, connections: int) -> Iterator[list[Any]]:
    """Begin 20 calls on each of many connections, whose bodies do not come."""
    channels = [open_channel(running.grpc.port) for _ in range(connections)]
    methods = [opened.stream_unary(f"/{TRACES.service}/Export") for opened in channels]
    yield [method.future(never(), timeout=20) for method in methods for _ in range(20)]
    for opened in channels:
        opened.close()


def test_bodies_that_do_not_come_are_given_up() -> None:
    """Calls without a body end after the time limit with a code that is to be retried."""
    with receiving(slow_seconds=1.0) as running, contextmanager(slow_calls)(running, 2) as slow:
        assert {call.exception().code() for call in slow} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert running.count("grpc", "DEADLINE_EXCEEDED") == 40


def test_bodies_that_do_not_come_keep_nobody_out() -> None:
    """However many calls wait for their bodies, another sender is served after a second or two."""
    with receiving(slow_seconds=30) as running, contextmanager(slow_calls)(running, 4) as slow:
        time.sleep(0.5)
        assert not any(call.done() for call in slow)  # a call that nobody holds is cancelled
        for _ in range(3):
            started = time.monotonic()
            assert export(running.grpc.port, REQUEST) == b""
            assert time.monotonic() - started < 4


def test_connections_are_limited() -> None:
    """Connections beyond the limit are closed at once; the others go on, and a freed place can be taken."""
    with receiving(max_connections=3) as running:
        opened = [open_channel(running.grpc.port) for _ in range(3)]
        for one in opened:
            assert one.unary_unary(f"/{TRACES.service}/Export")(REQUEST, timeout=5) == b""
        assert refused(running.grpc.port, REQUEST).code is grpc.StatusCode.UNAVAILABLE
        assert opened[0].unary_unary(f"/{TRACES.service}/Export")(REQUEST, timeout=5) == b""
        for one in opened:
            one.close()
        assert wait_until(lambda: answers(running), bool, 10)


def answers(running: Receiving) -> bool:
    """Whether a new connection is served."""
    try:
        return export(running.grpc.port, b"", timeout=2) == b""
    except grpc.RpcError:
        return False


def test_health_follows_readiness(receivers: Receiving) -> None:
    """Probes learn of each service and of the whole whether it is ready; a stranger's name is NOT_FOUND."""
    with open_channel(receivers.grpc.port) as opened:
        health = health_pb2_grpc.HealthStub(opened)

        def statuses() -> set[int]:
            names = ["", *(signal.service for signal in SIGNALS)]
            return {health.Check(health_pb2.HealthCheckRequest(service=name)).status for name in names}

        serving = {health_pb2.HealthCheckResponse.SERVING}
        not_serving = {health_pb2.HealthCheckResponse.NOT_SERVING}
        assert wait_until(statuses, lambda found: found == serving, 5) == serving
        receivers.is_ready = False
        assert wait_until(statuses, lambda found: found == not_serving, 5) == not_serving
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_services(receivers: Receiving) -> None:
    """Tools such as grpcurl learn the services and their messages from the server itself."""
    with open_channel(receivers.grpc.port) as opened:
        database = ProtoReflectionDescriptorDatabase(opened)
        assert {signal.service for signal in SIGNALS} <= set(database.get_services())
        file = database.FindFileContainingSymbol(TRACES.service)
        assert "ExportTraceServiceRequest" in {message.name for message in file.message_type}


def test_a_neighbour_of_hostile_requests_is_stored(receivers: Receiving) -> None:
    """While others send garbage, too much and bombs, every honest request is stored, once."""
    honest = [request_with_stages(1) for _ in range(20)]
    hostile = [os.urandom(500), filler(LIMIT * 2), gzip.compress(filler(LIMIT * 50)), b"\x0a\xff\xff\xff\xff\x0f"]

    def attack() -> None:
        for body in hostile * 5:
            assert refused(receivers.grpc.port, body).code in {
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            }

    attackers = [threading.Thread(target=attack) for _ in range(3)]
    for thread in attackers:
        thread.start()
    for request in honest:
        export(receivers.grpc.port, request)
    for thread in attackers:
        thread.join()
    assert [request for request in receivers.traces.requests if request in honest] == honest


def connect(port: int) -> socket.socket:
    """Open a TCP connection."""
    return socket.create_connection(("127.0.0.1", port), 5)


def test_a_connection_that_says_nothing_is_closed() -> None:
    """A client that connects and does not speak HTTP/2 gives its place back in time."""
    with (
        receiving(slow_seconds=0.5) as running,
        socket.create_connection(("127.0.0.1", running.grpc.port), 5) as silent,
    ):
        started = time.monotonic()
        while silent.recv(1000):
            pass
        assert time.monotonic() - started < 3
