"""Shares of any stages are whole, and nothing differs from itself."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailspan_queries.client import connect
from tailspan_queries.compare import compare_groups
from tailspan_queries.compare_records import Group
from tailspan_queries.stages import stage_report
from tailspan_queries.tail import tail_report
from tailspan_queries.times import Window
from tests.queries import traffic
from tests.queries.edges import odd_requests
from tests.queries.edges.odd_requests import DAY, HOUR, MS
from tests.support.collector import RunningCollector

_examples = count()
STAGES = st.lists(
    st.tuples(
        st.sampled_from(("queue", "prefill", "decode", "own")),
        st.integers(-50, 300),
        st.integers(0, 400),
    ),
    max_size=5,
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 3_599), st.integers(1, 500), STAGES, st.sampled_from((1.0, 1.0, 3.5))),
    min_size=1,
    max_size=60,
)


@given(REQUESTS)
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_shares_are_whole_and_nothing_differs_from_itself(
    store: RunningCollector, requests: list[tuple[int, int, list[tuple[str, int, int]], float]]
) -> None:
    """Whatever the stages, shares sum to one with `unattributed`, and a window is not better or worse than itself."""
    begin_ns = odd_requests.FIRST_DAY_NS + 60 * DAY + next(_examples) * HOUR
    window = Window(begin_ns, begin_ns + HOUR)
    spans = []
    for second, e2e, stages, weight in requests:
        parts = [(name, begin * MS, wall * MS) for name, begin, wall in stages]
        keys = traffic.weight_key(weight)
        # What no stage covers is the request's own word, as agents send it: end-to-end less the stages.
        keys["tailspan.unattributed_ns"] = e2e * MS - sum(wall for _, _, wall in parts)
        spans += odd_requests.request(begin_ns + second * odd_requests.SECOND, e2e * MS, parts, keys, service="random")
    before = store.query("select count() from tailspan.spans")[0][0]
    store.export(*traffic.messages(spans))
    assert store.wait_rows(before + len(spans)) >= before + len(spans)
    client = connect(store.url)
    try:
        rows = [row for row in stage_report(client, window).rows if row.stage != "request"]
        assert np.sum([row.share_ratio for row in rows]) == pytest.approx(1, abs=1e-6)
        assert np.sum([row.tail_share_ratio for row in rows]) == pytest.approx(1, abs=1e-6)
        whole = tail_report(client, window)
        parts_of = [row for row in whole.rows if row.stage != "request"]
        for name in ("share_ratio", "tail_share_ratio"):
            assert np.sum([getattr(row, name) for row in parts_of]) == pytest.approx(1, abs=1e-6)
        report = compare_groups(client, Group((window,)), Group((window,)))
        assert not {line.verdict for line in report.lines} & {"better", "worse"}
    finally:
        client.close()
