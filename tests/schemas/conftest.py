"""An embedded ClickHouse in the test process, which is closed again so that the next test can open another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailspan_collector.embedded import Engine
from tests.support.new_database import make_database


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A database with the whole schema."""
    with Engine(make_database(tmp_path_factory.mktemp("schema") / "clickhouse")) as engine:
        yield engine


@pytest.fixture
def empty_engine(tmp_path: Path) -> Iterator[Engine]:
    """A database without anything."""
    with Engine(tmp_path / "empty") as engine:
        yield engine
