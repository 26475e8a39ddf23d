"""Requests that only an engine's own tracing reported are in all three reports."""

import numpy as np
import pytest

from tailspan_queries.client import Client
from tailspan_queries.different import different_report
from tailspan_queries.fairness import fairness_report
from tailspan_queries.tail import tail_report
from tests.queries.contribution import traffic
from tests.queries.contribution.conftest import ENGINE

Times = tuple[bytes, list[dict[str, float]]]


def column(engine_spans: Times, name: str) -> np.ndarray:
    """Return one time of all requests, ns."""
    return np.array([times[name] for times in engine_spans[1]]) * 1e9


def test_tail_of_engine_requests(client: Client, engine_spans: Times) -> None:
    """Shares of mean and tail are those of the times that the engine told, as is what it left out."""
    report = tail_report(client, traffic.window(ENGINE), by="model", quantile=0.9)
    assert report.keys == ("engine-model",)
    e2e = column(engine_spans, "e2e")
    tail = e2e >= np.quantile(e2e, 0.9)
    for row in report.rows:
        if row.stage in ("queue", "prefill", "decode"):
            wall = column(engine_spans, row.stage)
            assert row.share_ratio == pytest.approx(wall.sum() / e2e.sum(), rel=1e-6)
            assert row.tail_share_ratio == pytest.approx(wall[tail].sum() / e2e[tail].sum(), rel=1e-6)
            assert row.path_ratio == pytest.approx(row.share_ratio, rel=1e-6)
    rest = next(row for row in report.rows if row.stage == "unattributed")
    assert rest.mean_ns == pytest.approx(10_000_000, rel=1e-3)


def test_waits_and_differences_of_engine_requests(client: Client, engine_spans: Times) -> None:
    """Their waits have NumPy's percentiles, the longest has its own; nothing is different about slow ones."""
    queue = column(engine_spans, "queue")
    report = fairness_report(client, traffic.window(ENGINE), by="model")
    assert report.everyone is not None
    assert report.everyone.requests == len(queue)
    assert report.everyone.wait_p99_ns == pytest.approx(np.percentile(queue, 99), rel=1e-6)
    assert report.longest[0].wait_ns == pytest.approx(queue.max(), rel=1e-6)
    assert report.longest[0].key == "engine-model"
    different = different_report(client, traffic.window(ENGINE), slowest=0.1)
    assert (different.requests, different.kept_slow, different.findings) == (400, 40, ())
