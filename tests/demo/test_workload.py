"""The planned load: repeatable, bursty and with the lengths of real chat traffic."""

from __future__ import annotations

import numpy as np
import pytest

from tailspan_queries.demo.workload import (
    ARRIVAL_CV,
    AZURE_OUTPUT,
    AZURE_PROMPT,
    MAX_OUTPUT_TOKENS,
    STREAMED_SHARE,
    LogNormal,
    arrival_times_s,
    lengths,
    plan_load,
)


def test_the_same_seed_plans_the_same_load() -> None:
    """A seed decides everything about the load, and another one changes it."""
    assert plan_load(30, 2.0, seed=5) == plan_load(30, 2.0, seed=5)
    assert plan_load(30, 2.0, seed=5) != plan_load(30, 2.0, seed=6)


@pytest.mark.parametrize("seed", range(5))
def test_arrivals_have_the_exact_mean_rate(seed: int) -> None:
    """The last of n requests comes (n - 1) / rate after the first."""
    times = arrival_times_s(np.random.default_rng(seed), 50, 2.0)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(49 / 2.0)
    assert (np.diff(times) >= 0).all()


def test_arrivals_are_as_bursty_as_the_trace_they_follow() -> None:
    """Over many gaps the coefficient of variation is Mooncake's."""
    gaps = np.diff(arrival_times_s(np.random.default_rng(1), 400_000, 2.0))
    assert gaps.std() / gaps.mean() == pytest.approx(ARRIVAL_CV, rel=0.05)


@pytest.mark.parametrize(("law", "scale"), [(AZURE_PROMPT, 1.0), (AZURE_OUTPUT, 1.0), (AZURE_PROMPT, 1 / 16)])
def test_lengths_have_the_percentiles_of_the_trace(law: LogNormal, scale: float) -> None:
    """Median and p99 of many drawn lengths are the published ones, times the scale."""
    drawn = lengths(np.random.default_rng(2), law, scale, 200_000)
    assert np.percentile(drawn, 50) == pytest.approx(law.p50 * scale, rel=0.02)
    assert np.percentile(drawn, 99) == pytest.approx(law.p99 * scale, rel=0.03)


def test_a_plan_mixes_lengths_and_streaming() -> None:
    """Prompts are varied, outputs bounded and about the stated share is streamed."""
    plan = plan_load(400, 2.0, seed=3)
    assert len({request.prompt for request in plan}) > 300
    assert all(1 <= request.max_tokens <= MAX_OUTPUT_TOKENS for request in plan)
    assert np.mean([request.stream for request in plan]) == pytest.approx(STREAMED_SHARE, abs=0.07)
    words = [len(request.prompt.split()) for request in plan]
    assert max(words) > 5 * min(words)


def test_one_request_can_be_planned() -> None:
    """The smallest load is one request at once."""
    (only,) = plan_load(1, 2.0, seed=0)
    assert only.at_s == 0.0
