"""Reads what a replay needs: requests by engine, what the steps reached, and steps to fit to.

In: a client, a window, filters, how many requests at most. Out: `Recording`.
Bounded: at most `limit` requests that count, as many before them, and about `FITTED_STEPS` steps come into memory.
Requests that stand for several (sampling) are repeated, the copies at arrivals of their own.
Errors: `UserError` if they stand for more than `MOST_COPIES`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from tailspan.errors import UserError
from tailspan_queries.client import Client, Result
from tailspan_queries.filters import Filters
from tailspan_queries.times import NS_PER_SECOND, Window
from tailspan_queries.whatif_records import STAGES, Extent, Floats, Requests, Steps

FITTED_STEPS = 60_000
MOST_COPIES = 2_000_000
"""Requests that a replay holds at most, with those that were not stored; some 300 bytes each."""
DEFAULT_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded of each engine."""

    requests: tuple[Requests, ...]
    extents: dict[int, Extent]
    steps: dict[int, Steps]
    kept: int
    """Stored requests of the window that were read."""
    is_cut: bool
    """Whether there were more requests than the limit."""
    repeated: int
    """Copies that stand for requests that were not stored."""


def read(client: Client, window: Window, filters: Filters, limit: int = DEFAULT_LIMIT, seed: int = 0) -> Recording:
    """Ask ClickHouse; without requests nothing else is read."""
    found = client.run("whatif_requests", {**window.parameters, **filters.parameters, "limit": limit})
    if not found.rows:
        return Recording((), {}, {}, 0, False, 0)
    columns = {name: list(values) for name, values in zip(found.columns, zip(*found.rows, strict=True), strict=True)}
    begin_ns, end_ns = min(columns["start_ns"]), max(columns["last_ns"])
    parameters = {
        **Window(begin_ns - NS_PER_SECOND, end_ns + NS_PER_SECOND).parameters,
        "service": filters.service,
        "instance": filters.instance,
    }
    extents = {row["engine"]: Extent(**row) for row in client.run("whatif_limits", parameters).records()}
    every = math.ceil(sum(extent.steps for extent in extents.values()) / FITTED_STEPS)
    steps = by_engine(client.run("whatif_steps", {**parameters, "every": max(every, 1)}), begin_ns)
    requests, repeated = split_requests(columns, begin_ns, seed)
    counted = sum(columns["counted"])
    return Recording(requests, extents, steps, counted, bool(columns["is_cut"][0]), repeated)


def by_engine(result: Result, origin_ns: int) -> dict[int, Steps]:
    """Turn the rows of query `whatif_steps` into arrays, one set for each engine, times from `origin_ns` on."""
    if not result.rows:
        return {}
    columns = dict(zip(result.columns, zip(*result.rows, strict=True), strict=True))
    engine = np.array(columns["engine"], np.uint64)
    arrays = {
        "kv_usage": np.array(columns["kv_usage_ratio"], np.float64),
        "weight": np.array(columns["weight"], np.float64),
        "begin_ns": np.array([value - origin_ns for value in columns["begin_ns"]], np.float64),
        "period_ns": np.array(columns["period_ns"], np.float64),
    }
    names = [field.name for field in fields(Steps) if field.name not in arrays]
    arrays |= {name: np.array(columns[name], np.int64) for name in names}
    return {
        int(key): Steps(**{name: values[engine == key] for name, values in arrays.items()}) for key in np.unique(engine)
    }


def split_requests(columns: dict[str, list], origin_ns: int, seed: int) -> tuple[tuple[Requests, ...], int]:  # type: ignore[type-arg]
    """Return the requests of each engine, times from `origin_ns` on, and how many of them are copies."""
    engine = np.array(columns["engine"], np.uint64)
    times = {
        name: np.array([value - origin_ns for value in columns[name]], np.float64)
        for name in ("start_ns", "arrival_ns", "first_ns", "last_ns", "end_ns")
    }
    # A clock that was set meanwhile does not make a request end before it began.
    ordered = np.maximum.accumulate([times[name] for name in times], axis=0)
    times = dict(zip(times, ordered, strict=True))
    counts = {name: np.array(columns[name], np.int64) for name in ("first_step", "decode_step", "last_step")}
    counts["prompt_tokens"] = np.maximum(np.array(columns["input_tokens"], np.int64), 1)
    counts["cached_tokens"] = np.clip(np.array(columns["cached_tokens"], np.int64), 0, counts["prompt_tokens"] - 1)
    counts["output_tokens"] = np.maximum(np.array(columns["output_tokens"], np.int64), 0)
    counts["decode_steps"] = np.where(counts["decode_step"] > 0, counts["last_step"] - counts["decode_step"] + 1, 0)
    stages = {stage: np.array(columns[f"{stage}_ns"], np.float64) for stage in STAGES}
    weight = np.array(columns["weight"], np.float64)
    check_copies(float(weight.sum()))
    counted = np.array(columns["counted"], bool)
    random = np.random.default_rng(seed)
    found, repeated = [], 0
    for key in np.unique(engine):
        rows, jitter = repeat(np.flatnonzero(engine == key), weight, times["start_ns"], random)
        repeated += len(rows) - int(np.sum(engine == key))
        order = np.argsort(times["arrival_ns"][rows] + jitter, kind="stable")
        rows, jitter = rows[order], jitter[order]
        found.append(
            Requests(
                engine=int(key),
                name=str(columns["name"][rows[0]]),
                queue_ns=stages["queue"][rows],
                weight=weight[rows],
                counted=counted[rows],
                stage_ns={stage: values[rows] for stage, values in stages.items()},
                **{name: values[rows] + jitter for name, values in times.items()},
                **{name: values[rows] for name, values in counts.items()},
            )
        )
    return tuple(found), repeated


def check_copies(stand_for: float) -> None:
    """Refuse a replay of more requests than memory and patience are there for.

    Raises: UserError if the requests stand for more than `MOST_COPIES`.
    """
    if stand_for > MOST_COPIES:
        raise UserError(
            f"the requests stand for {stand_for:,.0f}, more than the {MOST_COPIES:,} that can be replayed",
            "Narrow --since and --until, or read fewer with --requests",
        )


def repeat(
    rows: np.ndarray, weight: Floats, start_ns: Floats, random: np.random.Generator
) -> tuple[np.ndarray, Floats]:
    """Return each row as often as it counts, and how much later each copy comes: anywhere among its neighbours."""
    whole = np.floor(weight[rows] + random.random(len(rows))).astype(np.int64)
    whole = np.where(weight[rows] == 1, 1, np.maximum(whole, 1))
    copies = np.repeat(rows, whole)
    is_copy = np.concatenate([[False], copies[1:] == copies[:-1]])
    span_ns = float(np.ptp(start_ns[rows]))
    reach_ns = weight[copies] * span_ns / max(len(copies), 1)
    return copies, np.where(is_copy, random.uniform(-reach_ns, reach_ns), 0.0)


def total(requests: Sequence[Requests]) -> int:
    """Return how many requests count."""
    return sum(int(part.counted.sum()) for part in requests)
