"""One ClickHouse with every kind of odd data and one with empty tables, and a client that asks each question once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tailspan.cli import main
from tailspan.errors import UserError
from tailspan_queries import catalog
from tailspan_queries import client as client_module
from tailspan_queries.client import Client, Result, connect
from tests.queries import traffic
from tests.queries.edges import commands, odd_traffic
from tests.queries.edges.odd_requests import Odd
from tests.support.collector import RunningCollector, wait_until


class Remembering(Client):
    """A client that keeps each answer: a table, JSON and CSV of one question read the same rows."""

    def __init__(self, real: Client) -> None:
        self._real = real
        self.url = real.url
        self._answers: dict[Any, Result | UserError] = {}

    def execute(self, query: catalog.Query, parameters: Mapping[str, Any]) -> Result:
        """Ask once, then answer from memory, errors too."""
        key = (query.sql, repr(sorted(parameters.items())))
        if key not in self._answers:
            try:
                self._answers[key] = self._real.execute(query, parameters)
            except UserError as error:
                self._answers[key] = error
        found = self._answers[key]
        if isinstance(found, UserError):
            raise found
        return found

    def close(self) -> None:
        """Stay open for the next question."""


@pytest.fixture(scope="session")
def odd() -> dict[str, Odd]:
    """Every kind of odd data by its name."""
    return {item.name: item for item in odd_traffic.kinds()}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, odd: dict[str, Odd]) -> Iterator[RunningCollector]:
    """A collector that holds all of it."""
    with RunningCollector(tmp_path_factory.mktemp("edges") / "data", "--batch-seconds", "0.2") as running:
        spans = [span for item in odd.values() for span in item.spans]
        requests = sum(item.requests for item in odd.values())
        count = len(spans) + odd["engine_traced"].requests
        running.export(*traffic.messages(spans), odd["engine_traced"].message)
        assert running.wait_rows(count) == count
        # What views make of an insert is there a moment after its spans.
        rolled_up = "select sum(span_count) from tailspan.stage_minutes where stage = 'request'"
        assert wait_until(lambda: running.query(rolled_up)[0][0], lambda found: found >= requests) == requests
        indexed = "select sum(span_count) from tailspan.traces"
        assert wait_until(lambda: running.query(indexed)[0][0], lambda found: found >= count) == count
        yield running


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    """A collector that never got a span."""
    with RunningCollector(tmp_path_factory.mktemp("bare") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def full_client(store: RunningCollector) -> Iterator[Remembering]:
    """A client of the ClickHouse with odd data."""
    real = connect(store.url)
    yield Remembering(real)
    real.close()


@pytest.fixture(scope="session")
def empty_client(bare: RunningCollector) -> Iterator[Remembering]:
    """A client of the ClickHouse with empty tables."""
    real = connect(bare.url)
    yield Remembering(real)
    real.close()


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that points the commands to a client, away from the tester's terminal."""

    def point(client: Client) -> None:
        monkeypatch.setattr(client_module, "connect", lambda url=None: client)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("TAILSPAN_DEBUG", "1")
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)

    return point


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str], ask: Any, full_client: Remembering, odd: dict[str, Odd]) -> Any:
    """A function that returns what a command says in JSON of a kind of data."""
    ask(full_client)

    def run(kind: str, *words: str) -> Any:
        item = odd[kind]
        assert main(commands.arguments([*words, "--format", "json"], item.window, item.service)) == 0
        return commands.check_json(capsys.readouterr().out)

    return run
