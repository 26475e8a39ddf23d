"""Fixtures of the tests with a real vLLM; they run in `.venv-vllm` only, which `make test-vllm` makes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.environment import FOLDER
from tests.vllm.running import Offline, VllmServer, run_offline, serve

HERE = Path(__file__).parent
# `make test` runs in another environment: there these files are not collected, so that none is skipped.
collect_ignore_glob = [] if Path(sys.prefix).name == FOLDER else ["test_*.py", "*/test_*.py"]
START_S = 600
"""A test's time limit: it may have to start a vLLM, on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this folder that has no limit of its own enough time."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_S))


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The real SmolLM2-135M-Instruct; converted once, then kept in the user's cache."""
    from tailspan_queries.demo.model import prepare_model

    return prepare_model()


RunOffline = Callable[..., Offline]


@pytest.fixture(scope="session")
def offline(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunOffline:
    """Return a function that runs Python code beside an `LLM`, see `run_offline`.

    `processes=True` lets vLLM spawn its engine core; lower-case keywords are options of `LLM`, upper-case ones
    environment variables.
    """

    def run(body: str, *, processes: bool = False, **keywords: Any) -> Offline:
        env = {name: value for name, value in keywords.items() if name.isupper()}
        options = {name: value for name, value in keywords.items() if not name.isupper()}
        folder = tmp_path_factory.mktemp("offline")
        return run_offline(model_folder, folder, body, processes=processes, options=options, **env)

    return run


@pytest.fixture(scope="session")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One `vllm serve` for all tests that can share it: every test looks only at requests of its own."""
    with serve(model_folder, tmp_path_factory.mktemp("serve")) as running:
        yield running
