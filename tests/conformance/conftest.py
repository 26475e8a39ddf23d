"""Collectors and transports for the conformance tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.running import TRANSPORTS, OtlpCollector, unique
from tests.conformance.sending import JSON, PROTOBUF, Grpc, Http, Transport
from tests.conformance.signals import SIGNALS, Signal

CollectorFactory = Callable[..., OtlpCollector]


@pytest.fixture(scope="package")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtlpCollector]:
    """A collector that writes at once, with default limits; its tests must not depend on what else it holds."""
    with OtlpCollector(tmp_path_factory.mktemp("conformance") / "data", "--batch-seconds", "0.05") as running:
        yield running


@pytest.fixture(scope="package")
def small_collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtlpCollector]:
    """A collector that takes requests of up to 100,000 bytes."""
    arguments = ("--batch-seconds", "0.05", "--max-request-bytes", "100000")
    with OtlpCollector(tmp_path_factory.mktemp("small") / "data", *arguments) as running:
        yield running


@pytest.fixture(scope="package")
def full_collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtlpCollector]:
    """A collector whose spool may hold 1 MiB and that writes only once a minute."""
    arguments = ("--batch-seconds", "60", "--max-spool-bytes", "1048576", "--stop-seconds", "5")
    with OtlpCollector(tmp_path_factory.mktemp("full") / "data", *arguments) as running:
        yield running


@pytest.fixture
def start_collector(tmp_path: Path) -> Iterator[CollectorFactory]:
    """Start collectors in the test's folder; all are stopped after it."""
    started: list[OtlpCollector] = []

    def start(*arguments: str, data: str = "data") -> OtlpCollector:
        running = OtlpCollector(tmp_path / data, *arguments)
        started.append(running)
        running.start()
        return running

    yield start
    for running in started:
        running.stop()


@pytest.fixture(params=SIGNALS, ids=str)
def signal(request: pytest.FixtureRequest) -> Signal:
    """One signal after the other."""
    found: Signal = request.param
    return found


@pytest.fixture(params=TRANSPORTS)
def transport_name(request: pytest.FixtureRequest) -> str:
    """One transport after the other."""
    name: str = request.param
    return name


@pytest.fixture
def transport(transport_name: str, collector: OtlpCollector) -> Iterator[Transport]:
    """Each transport to the shared collector."""
    opened = collector.transport(transport_name)
    yield opened
    opened.close()


@pytest.fixture
def grpc_transport(collector: OtlpCollector) -> Iterator[Grpc]:
    """OTLP/gRPC to the shared collector."""
    opened = Grpc(collector.otlp_port)
    yield opened
    opened.close()


@pytest.fixture(params=[PROTOBUF, JSON], ids=["protobuf", "json"])
def http_transport(request: pytest.FixtureRequest, collector: OtlpCollector) -> Iterator[Http]:
    """OTLP/HTTP to the shared collector in both encodings."""
    opened = Http(collector.otlp_http_port, request.param)
    yield opened
    opened.close()


@pytest.fixture
def neighbours(collector: OtlpCollector) -> Iterator[None]:
    """Send an ordinary request of each signal before and after the test, which must be stored."""
    service = unique("neighbour")
    sender = Grpc(collector.otlp_port)

    def send() -> None:
        for signal in SIGNALS:
            assert sender.send(signal, signal.message(service, 5).SerializeToString()).ok

    send()
    yield
    send()
    for signal in SIGNALS:
        assert collector.stored(signal, service, 10) == 10, signal.name
    sender.close()
