"""What to make faster first: each stage in turn, through the same replay as `tailspan whatif`.

In: a client, a window, filters, a factor. Out: `Advice`, ranked by predicted gain.
Queue and eviction are consequences, which other stages' gains contain: their lines say what shorter waiting alone would
bring, whoever brings it about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window
from tailspan_queries.whatif import WhatIf, check, predicted, prepared, replay_all
from tailspan_queries.whatif_records import STAGES, UNKNOWN, Base, Change, Floats

FACTOR = 1.3
ADVISED_LIMIT, ADVISED_SEEDS = 5_000, 3
RANKINGS = ("p99", "p50", "mean")
MEASURE = {"p99": "e2e P99", "p50": "e2e P50", "mean": "e2e mean"}


@dataclass(frozen=True, slots=True)
class Gain:
    """What a faster stage would bring. Changes are ratios, negative is faster."""

    stage: str
    mean_ns: float
    share_ratio: float
    """Of the end-to-end time of all requests."""
    tail_share_ratio: float
    """Of that of the slowest 1 %."""
    mean_change_ratio: float
    p50_change_ratio: float
    p99_change_ratio: float
    p99_amdahl_ratio: float
    ttft_p99_change_ratio: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """The stages, the one that gains most first; `base` is the replay as it was."""

    base: WhatIf
    factor: float
    by: str
    rows: tuple[Gain, ...]


def advice(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    factor: float = FACTOR,
    by: str = RANKINGS[0],
    *,
    seeds: int = ADVISED_SEEDS,
    limit: int = ADVISED_LIMIT,
    base: Base = UNKNOWN,
    force: bool = False,
) -> Advice:
    """Read, fit, and replay once for each stage that takes time.

    Raises: UserError if the replay is too far off, unless forced.
    """
    report = prepared(client, window, filters, seeds=seeds, limit=limit, base=base)
    if not report.requests:
        return Advice(report, factor, by, ())
    plain = [replay_all(report.models, Change(), seed) for seed in range(seeds)]
    report = predicted(report, plain)
    if not force:
        check(report)
    rows = []
    for stage in STAGES:
        mean_ns, share, tail = shares(report, stage)
        if mean_ns > 0:
            found = predicted(replace(report, change=Change(((stage, factor),))), plain)
            rows.append(gain(found, stage, mean_ns, share, tail))
    key = f"{by}_change_ratio"
    return Advice(report, factor, by, tuple(sorted(rows, key=lambda row: (getattr(row, key), -row.mean_ns))))


def gain(found: WhatIf, stage: str, mean_ns: float, share: float, tail: float) -> Gain:
    """Collect what a replay with a faster stage says."""
    slowest = found.measure("e2e P99")
    return Gain(
        stage=stage,
        mean_ns=mean_ns,
        share_ratio=share,
        tail_share_ratio=tail,
        mean_change_ratio=found.measure("e2e mean").change_ratio or 0.0,
        p50_change_ratio=found.measure("e2e P50").change_ratio or 0.0,
        p99_change_ratio=slowest.change_ratio or 0.0,
        p99_amdahl_ratio=(slowest.amdahl_ns or 0.0) / slowest.measured_ns - 1 if slowest.measured_ns else 0.0,
        ttft_p99_change_ratio=found.measure("TTFT P99").change_ratio,
    )


def shares(report: WhatIf, stage: str) -> tuple[float, float, float]:
    """Return the mean of a stage, ns, its share of end-to-end time, and of that of the slowest 1 %."""
    parts = [model.requests for model in report.models]
    wall: Floats = np.concatenate([part.stage_ns[stage][part.counted] for part in parts])
    e2e: Floats = np.concatenate([(part.end_ns - part.start_ns)[part.counted] for part in parts])
    tail = e2e >= np.quantile(e2e, 0.99)
    return (
        float(wall.mean()),
        units.part(float(wall.sum()), float(e2e.sum())),
        units.part(float(wall[tail].sum()), float(e2e[tail].sum())),
    )
