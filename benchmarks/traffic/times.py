"""Times of the stages of one worker's requests, from its arrivals and lengths.

Log-normal noise around what the work takes. The queue is a single server's (Lindley's recursion) at the utilisation
that the service states, so that bursts of the real arrivals make real queues; the batch, and with it the time of a
token, grows with what arrived lately.
Units: ns unless named; one entry a request, in the order of arrival.
Source: Lindley 1952, "The theory of queues with a single server".
"""

from __future__ import annotations

import numpy as np

from benchmarks.traffic.arrivals import Arrivals, Floats, Ints
from benchmarks.traffic.fleet import Service

BATCH = 64
LONGEST_QUEUE_S = 90.0
"""Queues approach this and do not exceed it, as clients give up or are turned away."""
_LATELY_S = 10.0
MS = 1e6
STAGES = (
    "receive", "tokenize", "dispatch", "queue", "prefill", "decode", "preempted", "resumed", "detokenize", "respond"
)  # fmt: skip
"""In the order of time; `resumed` is the decode stage after a preemption."""


def lindley_s(at_s: Floats, service_s: Floats) -> Floats:
    """Return how long each request waits for those before it, where each takes `service_s` of a single server."""
    drift = np.concatenate(([0.0], np.cumsum(service_s[:-1] - np.diff(at_s))))
    waits: Floats = drift - np.minimum.accumulate(np.minimum(drift, 0.0))
    return waits


def batch_sizes(at_s: Floats, stay_s: float) -> Floats:
    """Return roughly how many requests are in the batch at each arrival, where each stays `stay_s`."""
    lately = np.arange(1, len(at_s) + 1) - np.searchsorted(at_s, at_s - _LATELY_S)
    sizes: Floats = np.clip(lately * stay_s / _LATELY_S, 1, BATCH)
    return sizes


def stage_times(
    service: Service, found: Arrivals, trace_rate: float, cached_tokens: Ints, draw: np.random.Generator
) -> tuple[dict[str, Ints], Ints]:
    """Return ns of every stage, 0 where a request has none, and the batch size of each request.

    The engine is as busy as the service states when all of the trace comes, `trace_rate` requests a second.
    """
    count = len(found.at_s)

    def noisy(median: Floats | float, sigma: float) -> Floats:
        return median * draw.lognormal(0.0, sigma, count)

    computed = np.maximum(found.input_tokens - cached_tokens, 1)
    prefill_ms = 12 + computed / service.prefill_tokens_per_s * 1e3
    gaps = np.maximum(found.output_tokens - 1, 0)
    batch = batch_sizes(found.at_s, float(gaps.mean()) * service.token_ms / 1e3)
    token_ms = service.token_ms * (1 + 0.8 * batch / BATCH)
    # Every request takes as much of the engine as any other: the mix of lengths alone must not move the queue.
    wait_s = lindley_s(found.at_s, service.utilisation / trace_rate * draw.gamma(2.0, 0.5, count))
    wait_s = LONGEST_QUEUE_S * -np.expm1(-wait_s / LONGEST_QUEUE_S)
    decode = noisy(gaps * token_ms, 0.08)
    is_preempted = (draw.random(count) < 0.03 * batch / BATCH) & (gaps >= 8)
    before = np.where(is_preempted, draw.uniform(0.1, 0.9, count), 1.0)
    milliseconds = {
        "receive": noisy(0.35, 0.5),
        "tokenize": noisy(0.4 + found.input_tokens * 0.0012, 0.3),
        "dispatch": noisy(0.5, 0.4),
        "queue": wait_s * 1e3 + noisy(3.0, 0.6),
        "prefill": noisy(prefill_ms * (1 + 0.4 * batch / BATCH), 0.12),
        "decode": decode * before,
        "preempted": np.where(is_preempted, noisy(400.0, 0.8), 0.0),
        "resumed": np.where(is_preempted, decode * (1 - before), 0.0),
        "detokenize": noisy(0.6, 0.4),
        "respond": noisy(0.4, 0.5),
    }
    return {name: np.round(milliseconds[name] * MS).astype(np.int64) for name in STAGES}, np.round(batch).astype(
        np.int64
    )
