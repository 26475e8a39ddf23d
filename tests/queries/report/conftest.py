"""A ClickHouse of its own with an incident, the day before it, markup in every name, and one lone request."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailspan_queries.client import Client, connect
from tailspan_queries.filters import ALL
from tailspan_queries.report.answers import Answers, gather
from tailspan_queries.report.page import render_page
from tests.queries import traffic
from tests.queries.report import page_traffic
from tests.queries.report.reading import Page, read_page
from tests.support.collector import RunningCollector, wait_until


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    """A running collector that holds all of it."""
    requests = [
        *page_traffic.incident(page_traffic.WINDOW, page_traffic.REQUESTS, 1, broken=True),
        *page_traffic.incident(page_traffic.DAY_BEFORE, page_traffic.REQUESTS, 2, broken=False),
        *page_traffic.hostile(),
        *page_traffic.lone(),
    ]
    spans = sum(len(item.request.stages) + 1 for item in requests)
    others = page_traffic.other_spans()
    with RunningCollector(tmp_path_factory.mktemp("report") / "data", "--batch-seconds", "0.2") as running:
        running.export(*page_traffic.messages(requests), *traffic.messages(others))
        assert running.wait_rows(spans + len(others)) == spans + len(others)
        rolled_up = "select sum(span_count) from tailspan.stage_minutes where stage = 'request'"
        assert wait_until(lambda: running.query(rolled_up)[0][0], lambda count: count >= len(requests)) == len(requests)
        parts = "select count() from tailspan.layers"
        assert wait_until(lambda: running.query(parts)[0][0], bool)
        yield running


@pytest.fixture(scope="session")
def client(store: RunningCollector) -> Iterator[Client]:
    """A client of it."""
    client = connect(store.url)
    yield client
    client.close()


@pytest.fixture(scope="session")
def answers(client: Client) -> Answers:
    """What the commands say of the incident."""
    return gather(client, page_traffic.WINDOW, ALL)


@pytest.fixture(scope="session")
def text(answers: Answers) -> str:
    """The page about the incident."""
    return render_page(answers, "Chat was slow")


@pytest.fixture(scope="session")
def page(text: str) -> Page:
    """The same, read."""
    return read_page(text)


@pytest.fixture(scope="session")
def hostile_text(client: Client) -> str:
    """The page about requests whose every name is markup, as is its title."""
    return render_page(gather(client, page_traffic.HOSTILE, ALL), page_traffic.CLOSING)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory, text: str, hostile_text: str) -> dict[str, Path]:
    """Both pages as files, by name."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in ("incident", "hostile")}
    for name, words in zip(found, (text, hostile_text), strict=True):
        found[name].write_text(words, encoding="utf-8")
    return found
