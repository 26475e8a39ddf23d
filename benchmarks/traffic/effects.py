"""What a planted truth did in fact: percentiles of the stage and of whole requests, before and after it.

Written beside the data as `truths.json`, so that what a command says can be held against it.
Units: ns, as `numpy.percentile` interpolates.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.traffic.requests import Made, Traffic
from benchmarks.traffic.times import STAGES
from benchmarks.traffic.truths import Change, Mix, Truth

QUANTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


def e2e_ns(records: np.ndarray) -> np.ndarray:
    """Return end-to-end times."""
    total: np.ndarray = records["gap_ns"].astype(np.int64)
    for stage in STAGES:
        total = total + records[f"{stage}_ns"].astype(np.int64)
    return total


def effects(traffic: Traffic, made: Made) -> list[dict[str, Any]]:
    """Describe every truth of a service, or the service itself as a control if it has none."""
    control = {"name": "control", "text": "nothing is planted", "service": made.service.name}
    if not made.planted:
        return [{**control, **_both_times(traffic, made.records, 0.5, "request")}]
    return [_effect(traffic, made, truth) for truth in made.planted]


def _effect(traffic: Traffic, made: Made, truth: Truth) -> dict[str, Any]:
    records, stage = made.records, "request" if isinstance(truth, Mix) else truth.stage
    scope: dict[str, Any] = {}
    if isinstance(truth, Change) and truth.worker is not None:
        records = records[records["worker"] == made.first_worker + truth.worker]
        scope["instance"] = f"{made.service.name}-{truth.worker}"
    if isinstance(truth, Change) and truth.priority is not None:
        records = records[records["priority"] == truth.priority]
    return {**asdict(truth), **scope, **_both_times(traffic, records, truth.since, stage)}


def _both_times(traffic: Traffic, records: np.ndarray, since: float, stage: str) -> dict[str, Any]:
    since_ns = traffic.begin_ns + round(since * traffic.length_s * 1e9)
    after = records["start_ns"] >= since_ns
    found: dict[str, Any] = {"since_ns": since_ns}
    for when, chosen in (("before", records[~after]), ("after", records[after])):
        whole = e2e_ns(chosen)
        found[when] = {"requests": len(chosen), "request": _percentiles(whole)}
        if stage != "request":
            walls = chosen[f"{stage}_ns"].astype(np.int64)
            found[when][stage] = _percentiles(walls[walls > 0])
    return found


def _percentiles(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    return dict(zip(QUANTILES, map(float, np.percentile(values, list(QUANTILES.values()))), strict=True))
