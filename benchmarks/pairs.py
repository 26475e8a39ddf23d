"""Paired comparisons with a 95 % interval.

In: values of interleaved rounds, `a[i]` and `b[i]` measured one after the other. Source: the percentile bootstrap over
whole rounds, which keeps what belongs together in a round together.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 2_000
_SEED = 20_261_129


@dataclass(frozen=True, slots=True)
class Change:
    """How much `b` is above `a`, in percent of `a`, with the bounds of its 95 % interval."""

    percent: float
    low: float
    high: float

    @property
    def interval(self) -> str:
        """The bounds for people."""
        return f"[{self.low:+.2f}, {self.high:+.2f}]"


def change_of_median(a: Sequence[float], b: Sequence[float]) -> Change:
    """Return the median over rounds of b/a - 1."""
    ratios = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    return _bootstrap(range(len(ratios)), lambda rounds: statistics.median(ratios[i] for i in rounds))


def change_of_quantile(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], q: float) -> Change:
    """Return b/a - 1 of a quantile over all values of all rounds; a resample takes whole rounds of both."""

    def estimate(rounds: Sequence[int]) -> float:
        return math.log(quantile([v for i in rounds for v in b[i]], q) / quantile([v for i in rounds for v in a[i]], q))

    return _bootstrap(range(min(len(a), len(b))), estimate)


def median_interval(values: Sequence[float]) -> Change:
    """Return the median of values that are changes in percent already."""
    rng = random.Random(_SEED)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Change(statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1])


def quantile(values: Sequence[float], q: float) -> float:
    """Return the nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)]


def _bootstrap(rounds: Sequence[int], estimate: Callable[[Sequence[int]], float]) -> Change:
    rng = random.Random(_SEED)
    resampled = sorted(estimate(rng.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    low, high = resampled[int(0.025 * RESAMPLES)], resampled[int(0.975 * RESAMPLES) - 1]
    return Change(*(math.expm1(value) * 100 for value in (estimate(rounds), low, high)))
