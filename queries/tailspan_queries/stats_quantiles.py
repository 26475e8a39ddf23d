"""Weighted percentiles.

In: values (n,) and weights (n,) > 0 of the same unit as the answer. Out: floats or arrays.
Source: the percentile is R's type 7 carried over to weights: value i stands at (W_i - w_i / 2 - w_1 / 2) / (W_n - w_1 /
2 - w_n / 2) with W_i the sum of the first i weights, and between two values it is linear. With equal weights that is
`numpy.percentile`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def quantiles(values: Array, weights: Array, levels: Sequence[float]) -> Array:
    """Return the values at `levels` (0 to 1), shape (levels,); NaN without values."""
    if not values.size:
        return np.full(len(levels), np.nan)
    order = np.argsort(values, kind="stable")
    return interpolated(values[order], weights[order], levels)


def interpolated(values: Array, weights: Array, levels: Sequence[float]) -> Array:
    """Return the quantiles of values that are sorted, at least one; shape (levels,)."""
    middles = np.cumsum(weights) - weights / 2 - weights[0] / 2
    found: Array = np.interp(np.asarray(levels) * middles[-1], middles, values)
    return found


def interpolated_rows(values: Array, weights: Array, levels: Sequence[float]) -> Array:
    """Return the quantiles of many weightings of the same sorted values.

    `values` is (k,), `weights` (rows, k) with zeros allowed; the answer is (rows, levels), NaN for a row of zeros.
    """
    used = weights > 0
    rows, places = np.arange(len(weights)), np.arange(weights.shape[1])
    first, last = used.argmax(axis=1), places[-1] - used[:, ::-1].argmax(axis=1)
    middles = np.cumsum(weights, axis=1) - weights / 2 - weights[rows, first][:, None] / 2
    # Of each place, the last one at or before it that has weight.
    held = np.maximum.accumulate(np.where(used, places, 0), axis=1)
    found = np.empty((len(weights), len(levels)))
    for number, level in enumerate(levels):
        target = level * middles[rows, last]
        upper = (used & (middles >= target[:, None])).argmax(axis=1)
        lower = np.where(upper > first, held[rows, np.maximum(upper - 1, 0)], upper)
        gap = middles[rows, upper] - middles[rows, lower]
        part = np.divide(target - middles[rows, lower], gap, out=np.zeros_like(target), where=gap > 0)
        found[:, number] = values[lower] + part * (values[upper] - values[lower])
    found[~used.any(axis=1)] = np.nan
    return found
