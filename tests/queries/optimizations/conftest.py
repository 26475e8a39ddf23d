"""A collector with four runs of a made-up server and a ledger that is empty again after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailspan_queries import optimizations_store
from tailspan_queries.client import Client, connect
from tests.queries import ledger_traffic, traffic
from tests.queries.optimizations.ledger import NAMES, WINDOWS, Tuned
from tests.support.collector import RunningCollector


@pytest.fixture(scope="session")
def tuned() -> Tuned:
    """Four runs of one server: tuning the queue takes 200 of 300 ms, tuning decode a third of its time."""
    times = ((300, 300), (100, 300), (100, 200), (300, 200))
    return {
        name: ledger_traffic.served(window, 700, number, queue_ms=queue_ms, decode_ms=decode_ms)
        for number, (name, window, (queue_ms, decode_ms)) in enumerate(zip(NAMES, WINDOWS, times, strict=True))
    }


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory, tuned: Tuned) -> Iterator[RunningCollector]:
    """A collector that has these runs and an empty ledger."""
    with RunningCollector(tmp_path_factory.mktemp("ledger") / "data", "--batch-seconds", "0.1") as running:
        spans = [span for run in tuned.values() for request in run for span in traffic.request_spans(request)]
        running.export(*traffic.messages(spans))
        assert running.wait_rows(len(spans)) == len(spans)
        yield running


@pytest.fixture(scope="session")
def reader(ledger: RunningCollector) -> Iterator[Client]:
    """A client of its ClickHouse."""
    client = connect(ledger.url)
    yield client
    client.close()


@pytest.fixture
def empty_ledger(ledger: RunningCollector, reader: Client) -> Iterator[RunningCollector]:
    """The collector with an empty ledger."""
    yield ledger
    entries = optimizations_store.read(reader)
    left = [optimizations_store.remove(reader, item.id, ledger.otlp_endpoint) for item in entries]
    assert optimizations_store.wait_seen(reader, left)
