"""When a tail changed, and which of several changes are more than chance.

In: counts by block of time, or p-values. Out: the block in which the change began; p-values held against each other.
Source: Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 1979; the change point is
that of the largest likelihood of two binomial rates, of which the first is known (Page, Biometrika 41, 1954).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEAST_RATE = 1e-9


def holm(p_values: Sequence[float]) -> list[float]:
    """Return each p-value as it counts among all of them, in the order given."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def change_block(slow: NDArray[np.float64], total: NDArray[np.float64], rate: float) -> int:
    """Return the block from which on more requests than `rate` were slow; 0 if that holds from the first on.

    `slow` and `total` are (blocks,): requests beyond a threshold, and all. Blocks before the change have `rate`.
    """
    gains = []
    for block in range(len(total)):
        found, whole = float(slow[block:].sum()), float(total[block:].sum())
        share = found / whole if whole else 0.0
        # A tail that became lighter is no change for the worse, and must not be the best explanation.
        gains.append(likelihood(found, whole, share) - likelihood(found, whole, rate) if share > rate else 0.0)
    return int(np.argmax(gains)) if gains else 0


def likelihood(found: float, whole: float, rate: float) -> float:
    """Return the logarithm of the likelihood of `found` among `whole` at a rate."""
    rate = min(max(rate, LEAST_RATE), 1 - LEAST_RATE)
    return found * math.log(rate) + (whole - found) * math.log(1 - rate)
