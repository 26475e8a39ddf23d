"""The ClickHouse of all queries, with the engine in it that predictions are held against."""

from dataclasses import replace

import pytest

from tailspan_queries.client import Client
from tests.queries import traffic, whatif_traffic
from tests.queries.whatif.engine import FEW, PLAIN, WINDOW, Ran
from tests.support.collector import RunningCollector, wait_until


@pytest.fixture(scope="session")
def ran() -> Ran:
    """The engine as it is recorded."""
    return whatif_traffic.run(PLAIN, WINDOW.since_ns)


@pytest.fixture(scope="session")
def client(client: Client, collector: RunningCollector, ran: Ran) -> Client:
    """The client of all tests, whose ClickHouse holds the engine too, and one request of another; days earlier."""
    few = replace(PLAIN, engine_id="few", requests=1, seed=2)
    spans = [
        *whatif_traffic.spans(PLAIN, *ran),
        *whatif_traffic.spans(few, *whatif_traffic.run(few, FEW.since_ns)),
    ]
    collector.export(*traffic.messages(spans))
    ours = f"where service = '{whatif_traffic.SERVICE}'"
    stored = f"select count() from tailspan.spans {ours}"
    assert wait_until(lambda: collector.query(stored)[0][0], lambda count: count >= len(spans)) == len(spans)
    rolled_up = f"select sum(span_count) from tailspan.stage_minutes {ours} and stage = 'request'"
    requests = PLAIN.requests + few.requests
    assert wait_until(lambda: collector.query(rolled_up)[0][0], lambda count: count >= requests) == requests
    return client
