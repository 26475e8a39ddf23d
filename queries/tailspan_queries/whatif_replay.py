"""One replay of recorded requests through the model of their engine, as they were or with something changed.

In: `EngineModel`, `Change`, a seed. Out: `Times`, arrays in the order of the engine's requests.

What a change does: a faster decode or prefill shortens its part of every step; stages before the engine bring requests
there earlier; stages after it are subtracted. Queue and eviction are waiting and no work, so that making them
"faster" just divides what the replay gives. Clients are taken not to react: they send when they did (open loop).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tailspan_queries.whatif_engine import serve
from tailspan_queries.whatif_fit import draw
from tailspan_queries.whatif_records import (
    AFTER_ENGINE,
    BEFORE_ENGINE,
    COMPUTED,
    Change,
    EngineModel,
    Floats,
    Limits,
    Load,
    Requests,
)


@dataclass(frozen=True, slots=True)
class Times:
    """What users see, ns, one element a request; `ttft_ns` is nan where there was no token."""

    e2e_ns: Floats
    ttft_ns: Floats
    queue_ns: Floats
    drain_ns: float = 0.0
    """From the last arrival until the last request left."""


def replay(model: EngineModel, change: Change, seed: int) -> Times:
    """Replay the requests of an engine; the same seed draws the same noise."""
    requests = model.requests
    origin = float(requests.start_ns[0])
    start_ns = origin + (requests.start_ns - origin) / change.arrivals
    arrival_ns = start_ns + np.maximum(
        requests.arrival_ns - requests.start_ns - saved(requests, change, before=True), 0
    )
    order = np.argsort(arrival_ns, kind="stable")
    cost = model.cost.faster(
        change.factor("decode") * change.layer_decode, change.factor("prefill") * change.layer_prefill
    )
    served = serve(
        changed_load(requests, change, arrival_ns, order),
        changed_limits(model.limits, change),
        cost,
        draw(model.residuals, seed, change.arrivals),
    )
    joined, first, last, evicted = (np.empty(len(order)) for _ in range(4))
    joined[order], first[order], last[order], evicted[order] = (
        served.joined_ns,
        served.first_ns,
        served.last_ns,
        served.evicted_ns,
    )
    queue_ns = (joined - arrival_ns) / change.factor("queue")
    shorter_ns = joined - arrival_ns - queue_ns
    after_ns = np.maximum(requests.end_ns - requests.last_ns - saved(requests, change, before=False), 0)
    kept_ns = evicted * (1 - 1 / change.factor("preempted"))
    return Times(
        e2e_ns=last - start_ns + after_ns - shorter_ns - kept_ns,
        ttft_ns=first - start_ns - shorter_ns,
        queue_ns=queue_ns,
        drain_ns=float(last.max() - arrival_ns.max()),
    )


def saved(requests: Requests, change: Change, *, before: bool) -> Floats:
    """Return what faster stages before the engine, or after it, take from each request, ns."""
    stages = BEFORE_ENGINE if before else AFTER_ENGINE
    found = np.zeros(len(requests))
    for stage in stages:
        found += requests.stage_ns[stage] * (1 - 1 / change.factor(stage))
    return found


def changed_load(requests: Requests, change: Change, arrival_ns: Floats, order: np.ndarray) -> Load:
    """Return the load of the replay, in the order of arrival."""
    prompt = np.maximum(np.rint(requests.prompt_tokens * change.prompt_tokens), 1).astype(np.int64)
    cached = np.rint(requests.cached_tokens * change.prompt_tokens)
    if change.prompt_cache is not None:
        cached = np.maximum(cached, np.rint(prompt * change.prompt_cache))
    output = np.maximum(np.rint(requests.output_tokens * change.output_tokens), 1).astype(np.int64)
    return Load(
        arrival_ns[order],
        prompt[order],
        np.minimum(cached, prompt - 1).astype(np.int64)[order],
        np.where(requests.output_tokens > 0, output, 0)[order],
    )


def changed_limits(limits: Limits, change: Change) -> Limits:
    """Return the limits of the replay."""
    return replace(
        limits,
        max_batch=change.batch or limits.max_batch,
        max_tokens=change.step_tokens or limits.max_tokens,
        kv_tokens=limits.kv_tokens * change.kv_cache,
    )


def measured(requests: Requests) -> Times:
    """Return what was recorded."""
    has_token = requests.output_tokens > 0
    return Times(
        e2e_ns=requests.end_ns - requests.start_ns,
        ttft_ns=np.where(has_token, requests.first_ns - requests.start_ns, np.nan),
        queue_ns=requests.queue_ns,
    )


def amdahl(requests: Requests, change: Change) -> Times:
    """Return what Amdahl's law gives: each request loses what its own stages lose, and nothing else moves."""
    was = measured(requests)
    queue_ns = was.queue_ns / change.factor("queue")
    first = saved(requests, change, before=True) + was.queue_ns - queue_ns
    layers = {"prefill": change.layer_prefill, "decode": change.layer_decode}
    computed = {
        stage: requests.stage_ns[stage] * (1 - 1 / (change.factor(stage) * layers[stage])) for stage in COMPUTED
    }
    evicted = requests.stage_ns["preempted"] * (1 - 1 / change.factor("preempted"))
    first = first + computed["prefill"]
    rest = computed["decode"] + evicted + saved(requests, change, before=False)
    return Times(was.e2e_ns - first - rest, was.ttft_ns - first, queue_ns)


def together(parts: list[tuple[Requests, Times]]) -> Times:
    """Return the times of all engines' requests that count."""
    e2e_ns, ttft_ns, queue_ns = (
        np.concatenate([getattr(times, name)[requests.counted] for requests, times in parts])
        for name in ("e2e_ns", "ttft_ns", "queue_ns")
    )
    return Times(e2e_ns, ttft_ns, queue_ns, max(times.drain_ns for _, times in parts))
