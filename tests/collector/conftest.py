"""Collectors for the tests: one that a module shares, and a factory for tests that stop, kill or spoil theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.collector import RunningCollector

CollectorFactory = Callable[..., RunningCollector]


@pytest.fixture(scope="module")
def shared_collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    """A collector that writes at once; its tests must not depend on what else it holds."""
    with RunningCollector(tmp_path_factory.mktemp("shared") / "data", "--batch-seconds", "0.05") as collector:
        yield collector


@pytest.fixture
def start_collector(tmp_path: Path) -> Iterator[CollectorFactory]:
    """Start collectors in the test's folder; all are stopped after it."""
    started: list[RunningCollector] = []

    def start(*arguments: str, data: str = "data", from_nothing: bool = False) -> RunningCollector:
        collector = RunningCollector(tmp_path / data, *arguments, from_nothing=from_nothing)
        started.append(collector)
        return collector.start()

    yield start
    for collector in started:
        collector.stop()
