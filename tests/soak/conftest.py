"""Long runs of the worker side in real processes: `make soak` runs them, `make test` only their small variants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.worker import Worker
from tests.support.otlp_sink import OtlpSink

FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "soak: takes minutes; only run when asked for with -m soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long ones out unless they are asked for."""
    if "soak" in config.option.markexpr:
        return
    long = [item for item in items if FOLDER in item.path.parents and item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


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
