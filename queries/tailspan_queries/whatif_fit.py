"""Fits an engine to its recorded steps: how long a step takes, and how much that varies.

In: the requests and steps of one engine. Out: `EngineModel`.
Method: non-negative least squares of the time of a step on 1, whether prompts are in it, its prompt tokens, its
decodes, and the tokens in the KV cache. Residuals are factors of the fitted time: first the pace, one for about
`PACE_STEPS` steps, as an engine is slower while other programs run beside it; then those of single steps, scaled so
that decode and mixed steps each keep the sum of their times. Noise is drawn from the latter in runs of `RUN` neighbours
(moving block bootstrap: Künsch, Ann. Stat. 17, 1989), as slow steps come together.
"""

from __future__ import annotations

import math

import numpy as np

from tailspan_queries import units
from tailspan_queries.whatif_least_squares import least_squares
from tailspan_queries.whatif_limits import infer_limits, kv_capacity
from tailspan_queries.whatif_records import (
    UNKNOWN,
    Base,
    Cost,
    EngineModel,
    Extent,
    Floats,
    Ints,
    Noise,
    Requests,
    Steps,
)

RUN = 50
NOISE_STEPS = 20_000
PACE_STEPS, MOST_PACES = 40, 500
"""Steps for which a pace is taken, and paces at most."""
PACE_ROUNDS = 4


def fit(requests: Requests, steps: Steps, extent: Extent, base: Base = UNKNOWN) -> EngineModel:
    """Return the model of one engine; limits in `base` are taken as they are."""
    context, running = contexts(requests, steps.step)
    tokens_a_step = decode_tokens_a_step(requests)
    cost, fitted, pace, pace_ns = fit_paced(steps, context, tokens_a_step, float(requests.arrival_ns[0]))
    paced = fitted * pace[place_of(steps, float(requests.arrival_ns[0]), pace_ns, len(pace))]
    mixed = steps.prefill_tokens > 0
    decode_factors, mixed_factors = (
        factors(steps.period_ns[part], paced[part], steps.weight[part]) for part in (~mixed, mixed)
    )
    residuals = Noise(decode_factors, mixed_factors, pace, pace_ns)
    spread = float(np.average((steps.period_ns - paced) ** 2, weights=steps.weight))
    variance = float(np.average((steps.period_ns - np.average(steps.period_ns)) ** 2, weights=steps.weight))
    limits, notes = infer_limits(extent, base, *kv_capacity(steps.kv_usage, context, running))
    return EngineModel(requests, limits, cost, residuals, 1 - units.part(spread, variance), tuple(notes))


def fit_paced(
    steps: Steps, context: Floats, tokens_a_step: float, begin_ns: float
) -> tuple[Cost, Floats, Floats, float]:
    """Fit the cost and the pace in turn, so that a slow minute is not taken for a slow kind of step.

    Times vary in proportion to themselves, so steps weigh the less the longer they should take.
    """
    pace, pace_ns, weight = np.ones(1), math.inf, steps.weight
    for _ in range(PACE_ROUNDS):
        paces_of_steps = pace[place_of(steps, begin_ns, pace_ns, len(pace))]
        cost, fitted = fit_cost(
            steps, context, tokens_a_step, steps.period_ns / np.maximum(paces_of_steps, 1e-9), weight
        )
        pace, pace_ns = paces(steps, fitted, begin_ns)
        weight = steps.weight / np.maximum(fitted, fitted.mean() / 10) ** 2
    return cost, fitted, pace, pace_ns


def place_of(steps: Steps, begin_ns: float, pace_ns: float, parts: int) -> Ints:
    """Return in which part of the time each step is."""
    found: Ints = np.clip((steps.begin_ns - begin_ns) / pace_ns, 0, parts - 1).astype(np.int64)
    return found


def fit_cost(
    steps: Steps, context: Floats, tokens_a_step: float, period_ns: Floats, weight: Floats
) -> tuple[Cost, Floats]:
    """Return the cost that fits these times, and the time that it gives each step, ns; shape (steps,) each."""
    decodes = steps.decode_tokens / planned_tokens(steps)
    prompts = steps.prefill_tokens > 0
    design = np.column_stack([np.ones(len(prompts)), prompts, steps.prefill_tokens, decodes, context * (decodes > 0)])
    found = least_squares(design, period_ns, weight)
    base, start, token, request, per_context = found.tolist()
    cost = Cost(
        base=base,
        request=request,
        context=per_context,
        alone=base,
        start=start,
        token=token,
        tokens_a_step=tokens_a_step,
        planned_tokens=planned_tokens(steps),
    )
    return cost, design @ found


def paces(steps: Steps, fitted: Floats, begin_ns: float) -> tuple[Floats, float]:
    """Return by which factor steps took longer than fitted in each part of the time, and how long a part is, ns.

    A part holds about `PACE_STEPS` steps, so that a chance of single steps is not taken for a pace.
    """
    parts = int(min(len(fitted) // PACE_STEPS, MOST_PACES))
    span_ns = float(steps.begin_ns.max()) - begin_ns
    if parts < 2 or span_ns <= 0:
        return np.ones(1), math.inf
    pace_ns = span_ns / parts * (1 + 1e-9)
    place = place_of(steps, begin_ns, pace_ns, parts)
    took = np.bincount(place, steps.weight * steps.period_ns, parts)
    meant = np.bincount(place, steps.weight * fitted, parts)
    return np.where(meant > 0, took / np.maximum(meant, 1e-9), 1.0), pace_ns


def factors(period_ns: Floats, fitted: Floats, weight: Floats) -> Floats:
    """Return by which factor each step took longer than fitted; over all of them the fitted times keep their sum."""
    usable = fitted > 0
    if not usable.any():
        return np.ones(1)
    found = period_ns[usable] / fitted[usable]
    meant = units.part(float(weight[usable] @ period_ns[usable]), float(weight[usable] @ fitted[usable]))
    mean = float(np.average(found, weights=weight[usable]))
    return found * (meant / mean) if mean > 0 else np.ones(1)


def draw(residuals: Noise, seed: int, rate: float = 1.0) -> Noise:
    """Draw noise for a replay: runs of neighbouring residuals from random places; the pace goes with the arrivals."""
    random = np.random.default_rng(seed)
    decode, mixed = (runs(values, random) for values in (residuals.decode, residuals.mixed))
    return Noise(decode, mixed, residuals.pace, residuals.pace_ns / rate)


def runs(values: Floats, random: np.random.Generator) -> Floats:
    """Return `NOISE_STEPS` values in runs of neighbours, with the mean of all."""
    begins = random.integers(0, len(values), math.ceil(NOISE_STEPS / RUN))
    drawn: Floats = values[(begins[:, None] + np.arange(RUN)[None, :]).ravel() % len(values)]
    mean = float(drawn.mean())
    return drawn * (float(values.mean()) / mean) if mean > 0 else drawn


def contexts(requests: Requests, step: Ints) -> tuple[Floats, Floats]:
    """Return tokens in the KV cache and requests in the batch at each step, from the requests; shape (steps,) each.

    A prompt counts from the request's first step on, and a token for every step of its decode.
    """
    begin, decode, last = requests.first_step, requests.decode_step, requests.last_step
    known = (begin > 0) & (last >= begin)
    begin, last = begin[known], last[known]
    has_decode = decode[known] > 0
    prompt = requests.prompt_tokens[known].astype(np.float64)
    decode = np.where(has_decode, decode[known], last + 1)

    def up_to(bounds: Ints, amounts: Floats) -> Floats:
        order = np.argsort(bounds, kind="stable")
        sums: Floats = np.concatenate([[0.0], np.cumsum(amounts[order])])
        return sums[np.searchsorted(bounds[order], step, side="right")]

    ones = np.ones(len(begin))
    running = up_to(begin, ones) - up_to(last + 1, ones)
    decoding = up_to(decode, ones) - up_to(last + 1, ones)
    began = up_to(decode, decode.astype(np.float64)) - up_to(last + 1, decode.astype(np.float64))
    held = up_to(begin, prompt) - up_to(last + 1, prompt)
    return held + decoding * (step + 1.0) - began, running


def decode_tokens_a_step(requests: Requests) -> float:
    """Return how many tokens a decode gets in a step: 1, or more with speculative decoding."""
    plain = (requests.decode_steps > 0) & (requests.stage_ns["preempted"] == 0) & (requests.output_tokens > 1)
    tokens = float((requests.output_tokens[plain] - 1).sum())
    found = units.part(tokens, float(requests.decode_steps[plain].sum()))
    return found if found > 1.05 else 1.0


def planned_tokens(steps: Steps) -> float:
    """Return how many tokens of a step a decode takes: 1, or more where drafts are tried."""
    pure = steps.prefill_tokens == 0
    found = units.part(float(steps.decode_tokens[pure].sum()), float(steps.requests[pure].sum()))
    return found if found > 1.05 else 1.0
