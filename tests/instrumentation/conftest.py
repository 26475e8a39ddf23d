"""Fixtures of the worker side: a recorder in a private folder, an OTLP sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailspan.recorder import process
from tailspan.settings import WORKER_DIR, Settings
from tests.engines.recorded import Recorded
from tests.support.otlp_sink import OtlpSink


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILSPAN_STRICT", "1")


@pytest.fixture
def worker_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A started recorder; the folder of its rings."""
    directory = tmp_path / "worker"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(WORKER_DIR, str(directory))
    process.start(Settings.from_environment())
    yield directory
    process.close()


@pytest.fixture
def recorded(worker_dir: Path) -> Recorded:
    """What a started recorder wrote."""
    return Recorded(worker_dir)


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A running OTLP/gRPC endpoint."""
    with OtlpSink() as running:
        yield running
