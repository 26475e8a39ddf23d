"""The limits of an engine's scheduler, as far as its steps show them.

In: what the steps of an engine reached, and how full its KV cache was. Out: `Limits`, and notes on what is not known.
"""

from __future__ import annotations

import math

import numpy as np

from tailspan_queries.whatif_least_squares import least_squares
from tailspan_queries.whatif_records import Base, Extent, Floats, Limits

LEAST_STEPS = 30
"""Steps below which nothing is fitted."""
FULL = 0.9
"""Share of the KV cache from which on it may be what limits the batch."""
FEW_AT_LIMIT = 3
"""Steps at the largest size that make it a limit and no chance."""

# Without numbers, which stand in the line of the engine, so that many engines share a note.
UNKNOWN_BATCH = (
    "nobody waited for a place in the batch, so its limit is not known and the replay has none (--base-batch)"
)
LARGEST_BATCH = "the largest batch is taken to be the limit, which no step shows (--base-batch)"
LARGEST_STEP = "the largest step is taken to be the limit of its tokens, which no step shows (--base-step-tokens)"


def kv_capacity(usage: Floats, context: Floats, running: Floats) -> tuple[float, float]:
    """Return how many tokens the KV cache holds, infinite if not told, and how many a request takes beyond its own."""
    told = (usage > 0) & (running > 0)
    if told.sum() < LEAST_STEPS or float(np.ptp(usage[told])) == 0:
        return math.inf, 0.0
    design = np.column_stack([context[told], running[told]])
    a_token, a_request = least_squares(design, usage[told], np.ones(int(told.sum()))).tolist()
    # Where hardly anything depends on the tokens (pages as large as a request) one token is the least there can be.
    a_token = max(a_token, a_request / 1e6)
    return (1 / a_token, a_request / a_token) if a_token > 0 else (math.inf, 0.0)


def infer_limits(extent: Extent, base: Base, kv_tokens: float, overhead: float) -> tuple[Limits, list[str]]:
    """Return the limits that the steps show or that are given, and a note for each that neither says.

    The largest batch is a limit if requests waited beside it, the most tokens if several steps have exactly that many.
    """
    notes: list[str] = []
    max_batch = float(base.max_batch or (extent.max_batch if extent.waiting_steps else math.inf))
    max_tokens = float(base.max_tokens or max(extent.max_tokens, 1))
    if math.isinf(max_batch):
        notes.append(UNKNOWN_BATCH)
    elif not base.max_batch and not extent.max_batch_waiting:
        notes.append(LARGEST_BATCH)
    if not base.max_tokens and extent.max_tokens_steps < FEW_AT_LIMIT:
        notes.append(LARGEST_STEP)
    # Only evictions or a full cache show that it limits; else it counts as the batch that fitted into it.
    if not extent.preempted and extent.max_kv_ratio < FULL:
        return Limits(max_batch, max_tokens), notes
    return Limits(max_batch, max_tokens, kv_tokens, min(1.0, max(extent.max_kv_ratio, 0.5)), overhead), notes
