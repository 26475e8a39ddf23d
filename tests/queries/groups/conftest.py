"""A ClickHouse of its own for the reports by group and over time."""

from collections.abc import Iterator

import pytest

from tailspan_queries.client import Client, connect
from tailspan_queries.times import Window
from tests.queries import engine_traffic, traffic
from tests.queries.groups import grouped_traffic
from tests.queries.groups.grouped_traffic import BEGIN_NS, DAY_NS, ENGINES_NS, Grouped
from tests.support.collector import RunningCollector, wait_until


@pytest.fixture(scope="session")
def grouped() -> list[Grouped]:
    """Three thousand requests over three days."""
    return grouped_traffic.requests()


@pytest.fixture(scope="session")
def engines() -> list[engine_traffic.Engine]:
    """Five engines with continuous batching, ten days later."""
    return engine_traffic.fleet(ENGINES_NS)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    """A running collector."""
    with RunningCollector(tmp_path_factory.mktemp("groups") / "data", "--batch-seconds", "0.2") as running:
        yield running


@pytest.fixture(scope="session")
def client(store: RunningCollector, grouped: list[Grouped], engines: list[engine_traffic.Engine]) -> Iterator[Client]:
    """A client of a ClickHouse that holds all of this."""
    served = [request for engine in engines for request in engine_traffic.requests_of(engine)]
    spans = [span for item in grouped for span in grouped_traffic.spans(item)]
    spans += [span for request in served for span in traffic.request_spans(request)]
    spans += [span for engine in engines for span in engine_traffic.step_spans(engine)]
    store.export(*traffic.messages(spans), grouped_traffic.engine_traced())
    assert store.wait_rows(len(spans) + 2) == len(spans) + 2
    requests = len(grouped) + len(served) + 2
    rolled_up = "select sum(span_count) from tailspan.stage_hours where stage = 'request'"
    assert wait_until(lambda: store.query(rolled_up)[0][0], lambda count: count >= requests) == requests
    chosen = "role in ('request', 'stage') and sipHash64(trace_id) % 4096 < 256"
    (expected,) = store.query(f"select count() from tailspan.spans where {chosen}")[0]
    sampled = "select count() from tailspan.spans_sample"
    assert wait_until(lambda: store.query(sampled)[0][0], lambda count: count >= expected) == expected
    client = connect(store.url)
    yield client
    client.close()


@pytest.fixture(scope="session")
def days() -> Window:
    """A window that holds the three days."""
    return Window(BEGIN_NS, BEGIN_NS + 3 * DAY_NS)


@pytest.fixture(scope="session")
def engine_days() -> Window:
    """A window that holds the engines."""
    return Window(ENGINES_NS, ENGINES_NS + DAY_NS)
