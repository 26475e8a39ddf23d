"""What is inferred of an engine from its requests and steps, against direct computations."""

import math

import numpy as np
import pytest
from scipy import optimize

from tailspan_queries.whatif_fit import contexts, decode_tokens_a_step, factors, fit, runs
from tailspan_queries.whatif_least_squares import least_squares
from tailspan_queries.whatif_limits import LARGEST_BATCH, LARGEST_STEP, UNKNOWN_BATCH, infer_limits, kv_capacity
from tailspan_queries.whatif_read import repeat
from tailspan_queries.whatif_records import STAGES, UNKNOWN, Base, Change, Extent, Requests, Steps
from tailspan_queries.whatif_replay import changed_load

EXTENT = Extent(1, 1000, 8, 50, 256, 20, 50, 0.4, 0)


def requests(count: int = 200, seed: int = 0, tokens_a_step: int = 1) -> Requests:
    """Return requests that take part in ranges of steps."""
    random = np.random.default_rng(seed)
    first = np.sort(random.integers(1, 900, count))
    decode_steps = random.integers(0, 60, count)
    decode = np.where(decode_steps > 0, first + random.integers(1, 4, count), 0)
    last = np.where(decode_steps > 0, decode + decode_steps - 1, first + 2)
    start = (first * 1e7).astype(np.float64)
    zeros = np.zeros(count)
    prompt = random.integers(1, 500, count)
    return Requests(
        engine=1, name="engine", start_ns=start, arrival_ns=start, first_ns=start, last_ns=start, end_ns=start,
        queue_ns=zeros, prompt_tokens=prompt, cached_tokens=prompt // 5,
        output_tokens=np.where(decode_steps > 0, decode_steps * tokens_a_step + 1, 1),
        decode_steps=decode_steps, first_step=first, decode_step=decode, last_step=last, weight=np.ones(count),
        counted=np.ones(count, bool), stage_ns=dict.fromkeys(STAGES, zeros),
    )  # fmt: skip


def test_context_of_each_step() -> None:
    """Tokens held and requests running at each step are the sums over the requests that take part in it."""
    found = requests()
    step = np.arange(1, 1000)
    context, running = contexts(found, step)
    for number in range(1, 1000, 7):
        held = batch = 0
        for index in range(len(found)):
            if found.first_step[index] <= number <= found.last_step[index]:
                batch += 1
                held += found.prompt_tokens[index]
                if 0 < found.decode_step[index] <= number:
                    held += number - found.decode_step[index] + 1
        assert (context[number - 1], running[number - 1]) == (held, batch)


def test_fit_finds_the_engine() -> None:
    """Base, decode, context and prompt costs of made-up steps are found again, and so is a slow spell."""
    random = np.random.default_rng(3)
    asked = requests()
    step = np.arange(1, 1000)
    context, running = contexts(asked, step)
    prefill = np.where(random.random(999) < 0.3, random.integers(1, 250, 999), 0)
    slow = np.where((step > 400) & (step < 600), 3.0, 1.0)
    clean = 5e6 + 2e5 * running + 300 * context * (running > 0) + (1e6 + 2e4 * prefill) * (prefill > 0)
    steps = Steps(
        step=step, begin_ns=(step * 1e7).astype(np.float64), period_ns=clean * slow * random.lognormal(0, 0.02, 999),
        requests=running.astype(int), prefill_tokens=prefill, decode_tokens=running.astype(int),
        waiting=np.zeros(999, int), kv_usage=np.full(999, 0.2), weight=np.ones(999),
    )  # fmt: skip
    model = fit(asked, steps, EXTENT)
    cost, pace = model.cost, model.residuals.pace
    given = (
        cost.base
        + cost.request * running
        + cost.context * context
        + (cost.start + cost.token * prefill) * (prefill > 0)
    )
    # What of it is pace and what is cost nobody can say: the ratio to the true cost is the same for all steps.
    ratio = given / clean
    assert np.median(np.abs(ratio / np.median(ratio) - 1)) < 0.04
    assert cost.token / cost.base == pytest.approx(2e4 / 5e6, rel=0.2)
    assert pace.max() / pace.min() == pytest.approx(3, rel=0.15)
    assert model.explained_ratio > 0.85


def test_factors_keep_the_sum() -> None:
    """Noise scales fitted times so that they keep their sum in the mean."""
    random = np.random.default_rng(1)
    fitted = random.uniform(1, 10, 500)
    took = fitted * random.lognormal(0.3, 0.4, 500)
    found = factors(took, fitted, np.ones(500))
    assert found.mean() == pytest.approx(took.sum() / fitted.sum())
    drawn = runs(found, random)
    assert drawn.mean() == pytest.approx(found.mean())
    # Neighbours stay neighbours: within a run the ratio of two values is that of two that follow one another.
    ratios = found[(np.arange(500) + 1) % 500] / found
    assert np.isin(np.round(drawn[1:50] / drawn[:49], 9), np.round(ratios, 9)).all()


def test_kv_cache_is_found() -> None:
    """Capacity and half-filled blocks are found from how full the cache was."""
    random = np.random.default_rng(5)
    running = random.integers(1, 20, 400).astype(float)
    context = running * random.uniform(100, 900, 400)
    capacity, overhead = kv_capacity((context + 8 * running) / 20_000, context, running)
    assert (capacity, overhead) == pytest.approx((20_000, 8))
    assert kv_capacity(np.zeros(400), context, running) == (math.inf, 0.0)


def test_limits_that_steps_show_or_not() -> None:
    """A batch beside which nobody waited is no limit, and that is said; given limits are taken as they are."""
    limits, notes = infer_limits(EXTENT, UNKNOWN, 1000.0, 8.0)
    assert (limits.max_batch, limits.max_tokens, limits.kv_tokens, notes) == (8, 256, math.inf, [])
    calm = Extent(1, 1000, 8, 0, 256, 20, 0, 0.4, 0)
    limits, notes = infer_limits(calm, UNKNOWN, 1000.0, 8.0)
    assert math.isinf(limits.max_batch)
    assert notes == [UNKNOWN_BATCH]
    limits, notes = infer_limits(calm, Base(16, 512), 1000.0, 8.0)
    assert (limits.max_batch, limits.max_tokens, notes) == (16, 512, [])
    evicting = Extent(1, 1000, 8, 0, 200, 1, 50, 0.97, 3)
    limits, notes = infer_limits(evicting, UNKNOWN, 1000.0, 8.0)
    assert (limits.max_batch, limits.kv_tokens, limits.admit_ratio) == (8, 1000.0, 0.97)
    assert notes == [LARGEST_BATCH, LARGEST_STEP]


def test_speculative_decoding_is_seen() -> None:
    """Tokens for a decode step are 1, or what drafts make them."""
    assert decode_tokens_a_step(requests()) == 1
    assert decode_tokens_a_step(requests(tokens_a_step=3)) == pytest.approx(3)


def test_weighted_requests_are_repeated() -> None:
    """A request that stands for ten comes ten times in the mean, once as it was, and others stay single."""
    random = np.random.default_rng(2)
    weight = np.where(np.arange(4000) % 2, 1.0, 10.5)
    start = (np.arange(4000) * 1e6).astype(np.float64)
    rows, jitter = repeat(np.arange(4000), weight, start, random)
    assert len(rows) == pytest.approx(weight.sum(), rel=0.01)
    assert (np.bincount(rows)[1::2] == 1).all()
    assert (jitter == 0).sum() == 4000
    assert np.abs(jitter).max() <= 10.5 * np.ptp(start) / len(rows)


def test_changed_lengths() -> None:
    """Lengths scale, a cache never holds a whole prompt, and a request without output stays without."""
    asked = requests()
    asked.output_tokens[3] = 0
    order = np.arange(len(asked))
    load = changed_load(asked, Change(output_tokens=0.5, prompt_tokens=2.0, prompt_cache=0.9), asked.arrival_ns, order)
    assert load.output_tokens[3] == 0
    assert (np.delete(load.output_tokens, 3) == np.maximum(np.rint(np.delete(asked.output_tokens, 3) / 2), 1)).all()
    assert (load.prompt_tokens == 2 * asked.prompt_tokens).all()
    assert (load.cached_tokens < load.prompt_tokens).all()
    assert load.cached_tokens.sum() == pytest.approx(0.9 * load.prompt_tokens.sum(), rel=0.01)


def test_least_squares_is_that_of_scipy() -> None:
    """Coefficients without negative ones are those of scipy's solver."""
    random = np.random.default_rng(1)
    for _ in range(10):
        design = random.normal(size=(40, 5)) * random.uniform(0.1, 1000, 5)
        values, weight = random.normal(size=40), random.uniform(0.5, 3, 40)
        expected, _ = optimize.nnls(design * np.sqrt(weight)[:, None], values * np.sqrt(weight))
        assert least_squares(design, values, weight) == pytest.approx(expected, rel=1e-6, abs=1e-9)
