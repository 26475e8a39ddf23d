"""Statistics on counts: is a group over-represented among the slow, and how sure is that?

In: counts, and counts by block of time. Out: probabilities between 0 and 1. Pure functions, without SciPy.
Sources: Fisher's exact test (hypergeometric tail); Benjamini and Hochberg 1995 for many tests at once; Student's t and
Welch's over blocks of time, since requests near each other resemble each other; intervals by
Miettinen's test-based method (1976).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailspan_queries.stats_student import student_greater

Numbers = npt.NDArray[np.float64]

NORMAL_95 = 1.959963984540054
"""Standard deviations to either side that hold 95 % of a normal distribution."""


def log_factorials(largest: int) -> Numbers:
    """Return the logarithms of 0! to `largest`!."""
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, largest + 1, dtype=np.float64)))))


def fisher_greater(both: int, group: int, slow: int, everything: int, logs: Numbers | None = None) -> float:
    """Return the chance of `both` or more slow ones in a group of that size, if being slow had nothing to do with it.

    `logs` are the logarithms of the factorials up to `everything`, for callers with many groups.
    """
    known = log_factorials(everything) if logs is None else logs
    most = min(group, slow)
    if both > most:
        return 0.0
    hits = np.arange(max(both, group + slow - everything, 0), most + 1)
    terms = (
        known[group] - known[hits] - known[group - hits]
        + known[everything - group] - known[slow - hits] - known[everything - group - slow + hits]
        - (known[everything] - known[slow] - known[everything - slow])
    )  # fmt: skip
    return float(min(np.exp(terms).sum(), 1.0))


def blocks_greater(group: Sequence[float], group_slow: Sequence[float], requests: Sequence[float],
                   slow: Sequence[float]) -> float:  # fmt: skip
    """Return the chance of so many slow ones in a group, from how that differs between blocks of time.

    Each argument holds a number for each block. The excess of a block is what it adds to the covariance of being in the
    group and being slow; the chance is that of a mean excess as large, by Student's t over the blocks. A group that is
    slow in one block only is not surprising, however many requests it has.
    """
    in_group, hits = np.asarray(group, dtype=float), np.asarray(group_slow, dtype=float)
    sizes, slows = np.asarray(requests, dtype=float), np.asarray(slow, dtype=float)
    share, slow_share = in_group.sum() / sizes.sum(), slows.sum() / sizes.sum()
    excess = (hits - share * slows - slow_share * in_group + share * slow_share * sizes)[sizes > 0]
    count = len(excess)
    deviation = float(excess.std(ddof=1)) if count > 1 else 0.0
    if count < 2 or deviation <= 1e-12 * float(np.abs(excess).max(initial=0.0)):
        return 1.0 if count < 2 or excess.mean() <= 0 else 0.0
    return student_greater(float(excess.mean()) / (deviation / math.sqrt(count)), count - 1)


def welch_greater(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the chance of a mean that much larger afterwards, by Welch's t test; 1 with fewer than two on a side."""
    one, other = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if len(one) < 2 or len(other) < 2:
        return 1.0
    parts = (float(one.var(ddof=1)) / len(one), float(other.var(ddof=1)) / len(other))
    rise = float(other.mean() - one.mean())
    if sum(parts) <= 0:
        return 0.0 if rise > 0 else 1.0
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(other) - 1))
    return student_greater(rise / math.sqrt(sum(parts)), freedom)


def normal_quantile_greater(probability: float) -> float:
    """Return the value that a standard normal variable exceeds with that probability, at most 38."""
    from statistics import NormalDist

    return -NormalDist().inv_cdf(min(max(probability, 1e-300), 1 - 1e-16))


def benjamini_hochberg(chances: Sequence[float]) -> list[float]:
    """Return for each chance the rate of false discoveries at which it would just be one."""
    values = np.asarray(chances, dtype=float)
    if not len(values):
        return []
    order = np.argsort(values)
    scaled = values[order] * len(values) / np.arange(1, len(values) + 1)
    rates = np.minimum.accumulate(scaled[::-1])[::-1]
    found = np.empty(len(values))
    found[order] = np.minimum(rates, 1.0)
    return [float(rate) for rate in found]


def times_as_likely(hits: float, group: float, other_hits: float, others: float) -> float:
    """Return how many times as likely it is to be slow in the group as outside of it; half a request added to each."""
    return ((hits + 0.5) / (group + 1)) / ((other_hits + 0.5) / (others + 1))


def lower_bound(times: float, chance: float) -> float:
    """Return the lower end of the 95 % interval of a ratio whose test gave that one-sided chance (Miettinen)."""
    z = normal_quantile_greater(chance)
    if times <= 1 or z <= 0:
        return min(times, 1.0)
    return float(times ** (1 - NORMAL_95 / z))
