"""A sender that got no answer sends the same request again; a receiver that loses nothing must not double it either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.running import OtlpCollector, unique
from tests.conformance.sending import Grpc
from tests.conformance.signals import LOGS, METRICS, TRACES, Signal


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtlpCollector]:
    """A collector of these tests, which kill it."""
    with OtlpCollector(tmp_path_factory.mktemp("killed") / "data", "--batch-seconds", "0.05") as running:
        yield running


def settled(running: OtlpCollector, signal: Signal, service: str) -> int:
    """Return how many items a service has once a later request is stored too."""
    marker = unique("later")
    sender = Grpc(running.otlp_port)
    assert sender.send(signal, signal.message(marker).SerializeToString()).ok
    sender.close()
    assert running.stored(signal, marker, 1) == 1
    return running.stored(signal, service, 1)


def test_the_same_request_over_every_transport_is_stored_once(collector: OtlpCollector, signal: Signal) -> None:
    """The same protobuf over gRPC and HTTP, plain and gzip, is acknowledged each time and stored once."""
    service = unique("again")
    body = signal.message(service, 3).SerializeToString()
    for name in ("grpc", "http/protobuf", "grpc"):
        transport = collector.transport(name)
        for gzipped in (False, True):
            assert transport.send(signal, body, gzipped=gzipped).ok
        transport.close()
    assert settled(collector, signal, service) == 3


@pytest.mark.parametrize("stored_before", [True, False], ids=["stored", "only in the spool"])
def test_a_request_that_a_killed_process_took_is_stored_once(killed: OtlpCollector, stored_before: bool) -> None:
    """Acknowledged, then kill -9: the next process recognises the same request, whether ClickHouse had it or not."""
    service = unique("killed")
    bodies = {signal: signal.message(service, 3).SerializeToString() for signal in (TRACES, METRICS, LOGS)}
    sender = Grpc(killed.otlp_port)
    assert all(sender.send(signal, body).ok for signal, body in bodies.items())
    if stored_before:
        assert all(killed.stored(signal, service, 3) == 3 for signal in bodies)
    killed.kill9()
    killed.start()
    sender.close()
    again = Grpc(killed.otlp_port)
    assert all(again.send(signal, body).ok for signal, body in bodies.items())
    again.close()
    assert [settled(killed, signal, service) for signal in bodies] == [3, 3, 3]


def test_requests_that_differ_in_one_byte_are_two(collector: OtlpCollector, signal: Signal) -> None:
    """Only a request of exactly the same bytes is the same."""
    service = unique("other")
    sender = Grpc(collector.otlp_port)
    message = signal.message(service)
    for version in "12":
        getattr(message, signal.resources)[0].schema_url = version
        assert sender.send(signal, message.SerializeToString()).ok
    sender.close()
    assert settled(collector, signal, service) == 2
