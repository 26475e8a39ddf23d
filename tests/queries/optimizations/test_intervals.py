"""Intervals of gains, and the warnings that rest on them."""

from __future__ import annotations

import numpy as np
import pytest

from tailspan_queries.filters import Filters
from tailspan_queries.optimizations_cautions import cautions
from tailspan_queries.optimizations_measure import RESAMPLES, Sample, gain_interval
from tailspan_queries.optimizations_records import Effect, Measured, Optimization
from tests.queries.ledger_traffic import MS


def made_sample(rng: np.random.Generator, blocks: int, mean_ms: float) -> Sample:
    """Return a sample whose blocks differ in their rate and in how long all of their requests wait."""
    counts = rng.integers(1, 30, blocks).astype(float)
    waits = mean_ms * MS * rng.lognormal(-0.125, 0.5, blocks)
    return Sample(int(counts.sum()), counts, {"queue": waits * counts})


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    """Drawing blocks one by one gives the same interval within what chance allows."""
    rng = np.random.default_rng(1)
    before, after = made_sample(rng, 60, 300), made_sample(rng, 50, 200)
    gains = []
    for _ in range(RESAMPLES):
        means = []
        for side in (before, after):
            chosen = rng.integers(0, len(side.requests), len(side.requests))
            means.append(side.sums_ns["queue"][chosen].sum() / side.requests[chosen].sum())
        gains.append(means[0] - means[1])
    low, high = np.quantile(gains, (0.025, 0.975))
    interval = gain_interval(before, after, "queue")
    assert interval == pytest.approx((low, high), abs=0.1 * (high - low))
    assert gain_interval(before, made_sample(rng, 7, 200), "queue") is None


def test_the_interval_holds_no_gain_where_there_is_none() -> None:
    """Of 100 comparisons of equal runs about one in twenty sees a gain: 1 to 10 % at sixty blocks."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(100):
        interval = gain_interval(made_sample(rng, 60, 300), made_sample(rng, 60, 300), "queue")
        assert interval is not None
        alarms += not interval[0] <= 0 <= interval[1]
    assert 1 <= alarms <= 10


def test_a_gain_on_average_that_costs_the_tail_is_told() -> None:
    """An entry that made the mean better and the slowest worse says so first; a gain within chance says that too."""
    sample_ = Sample(1000, np.ones(10), {}, {"request": 100.0})
    item = Optimization("ab" * 16, "batching", "queue")
    worse = Measured(100, 90, (5.0, 15.0), 100, 90, -30 * MS, 1000, 1000)
    chance = Measured(100, 90, (-5.0, 15.0), 100, 90, 5, 1000, 1000)
    lines = cautions([Effect(item, "measured", gain_ns=(10, 10), measured=worse)], sample_, sample_, Filters())
    assert lines == ["THE TAIL GOT WORSE: batching gained on average and lost 30.0 ms among the slowest 1 %"]
    (line,) = cautions([Effect(item, "measured", gain_ns=(10, 10), measured=chance)], sample_, sample_, Filters())
    assert line == "the interval of the gain holds 0, so that it may be none: batching"
    few = Sample(99, np.ones(10), {}, {})
    assert cautions([], few, sample_, Filters()) == [
        "a window of the total has 99 requests: p99 is the slowest of them"
    ]
