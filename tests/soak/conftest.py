"""Long runs of the worker side in real processes: `make soak` runs them, `make test` only their small variants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.worker import Worker
from tests.support.otlp_sink import OtlpSink


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A running OTLP/gRPC endpoint."""
    with OtlpSink() as running:
        yield running


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Starts programs under tracing; checks at the end that none of its agents is left."""
    starter = Worker(tmp_path)
    yield starter
    starter.end_all()
