"""A ClickHouse of its own, filled with traffic in which something is planted, or nothing."""

from collections.abc import Iterator

import pytest

from tailspan_queries.client import Client, connect
from tests.queries import traffic as plain
from tests.queries.contribution import traffic
from tests.support.collector import RunningCollector, wait_until

PLANTED, NOTHING, WEIGHTED, STARVED, EVEN, OVERLAPPING, ENGINE = range(7)
"""Hours that the sets of requests are in."""
SAMPLED = "select count() from tailspan.spans where role in ('request', 'stage') and sipHash64(trace_id) % 4096 < 256"


@pytest.fixture(scope="session")
def planted() -> list[traffic.Labelled]:
    """Six thousand requests; two in a hundred of worker-3 are slow in their prefill."""
    return traffic.requests(6000, PLANTED, seed=3, slow_worker="worker-3")


@pytest.fixture(scope="session")
def nothing() -> list[traffic.Labelled]:
    """Three thousand requests without structure."""
    return traffic.requests(3000, NOTHING, seed=5)


@pytest.fixture(scope="session")
def weighted() -> list[traffic.Labelled]:
    """Of eight thousand requests with the same truth planted the slow ones, and a fourth of the others."""
    whole = traffic.requests(8000, WEIGHTED, seed=8, slow_worker="worker-1")
    return traffic.sampled(whole, every=4, seed=2)


@pytest.fixture(scope="session")
def starved() -> list[traffic.Labelled]:
    """Three thousand requests; in the second half those of priority 9 wait 25 times as long."""
    return traffic.starving(3000, STARVED, seed=13, factor=25)


@pytest.fixture(scope="session")
def even() -> list[traffic.Labelled]:
    """Three thousand requests of the same priorities, all of which wait alike."""
    return traffic.starving(3000, EVEN, seed=14, factor=1)


@pytest.fixture(scope="session")
def overlapping() -> list[traffic.Overlapping]:
    """Three hundred requests with stages that overlap."""
    return traffic.overlapping(300, OVERLAPPING, seed=17)


@pytest.fixture(scope="session")
def engine_spans() -> tuple[bytes, list[dict[str, float]]]:
    """Four hundred requests that only the engine's own tracing reported, and their times."""
    return traffic.engine_message(400, ENGINE, seed=19)


@pytest.fixture(scope="session")
def client(
    tmp_path_factory: pytest.TempPathFactory,
    planted: list[traffic.Labelled],
    nothing: list[traffic.Labelled],
    weighted: list[traffic.Labelled],
    starved: list[traffic.Labelled],
    even: list[traffic.Labelled],
    overlapping: list[traffic.Overlapping],
    engine_spans: tuple[bytes, list[dict[str, float]]],
) -> Iterator[Client]:
    """A client of a ClickHouse that holds all of this."""
    spans = [*traffic.spans([*planted, *nothing, *weighted, *starved, *even]), *traffic.overlapping_spans(overlapping)]
    with RunningCollector(tmp_path_factory.mktemp("contribution") / "data", "--batch-seconds", "0.2") as collector:
        message, engine_times = engine_spans
        collector.export(*plain.messages(spans), message)
        count = len(spans) + len(engine_times)
        assert collector.wait_rows(count) == count
        # What views make of an insert is there a moment after its spans.
        rolled_up = "select sum(span_count) from tailspan.stage_hours where stage = 'request'"
        requests = sum(map(len, (planted, nothing, weighted, starved, even, overlapping, engine_times)))
        assert wait_until(lambda: collector.query(rolled_up)[0][0], lambda count: count >= requests) == requests
        (sampled,) = collector.query(SAMPLED)[0]
        in_sample = "select count() from tailspan.spans_sample"
        assert wait_until(lambda: collector.query(in_sample)[0][0], lambda count: count >= sampled) == sampled
        client = connect(collector.url)
        yield client
        client.close()
