"""Forwarders from real spools, stopped after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailspan_collector.forward import Forwarder, from_table
from tailspan_collector.metrics import Metrics
from tailspan_collector.spool import Spool
from tests.support.spools import open_spool

Start = Callable[..., Forwarder]


@pytest.fixture
def metrics() -> Metrics:
    """The metrics of the test's collector."""
    return Metrics()


@pytest.fixture
def spool(tmp_path: Path, metrics: Metrics) -> Iterator[Spool]:
    """A spool of traces."""
    spool = open_spool(tmp_path / "traces", metrics=metrics)
    yield spool
    spool.close()


def no_clickhouse() -> Any:
    """Stand for a ClickHouse that nobody needs."""
    raise AssertionError("forwarding without `sample` asks ClickHouse nothing")


@pytest.fixture
def start(spool: Spool, metrics: Metrics, tmp_path: Path) -> Iterator[Start]:
    """Start forwarders of the spool by the keys of their table; they are stopped before the spool is."""
    started: list[Forwarder] = []

    def start_one(endpoint: str, **table: Any) -> Forwarder:
        destination = from_table({"endpoint": endpoint, **table})
        forwarder = Forwarder(destination, {"traces": spool}, no_clickhouse, metrics, tmp_path / "forward")
        started.append(forwarder)
        forwarder.start()
        return forwarder

    yield start_one
    for forwarder in started:
        forwarder.stop(0.0)
