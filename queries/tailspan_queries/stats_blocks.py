"""Differences of means and percentiles between two samples, with intervals by resampling blocks of time.

In: two `Sides`: values with weight, block and stratum. Out: for each statistic the difference with its interval.
Requests of one batch or one queue are not independent, so whole blocks of time are drawn with replacement, of each
side as many as it has; what all requests of a block share then counts once. The earlier side is weighted so that its
strata are as frequent as those of the later side, anew in each draw, as the mix is an estimate too. Percentiles of the
draws are read from up to `BINS` bins of the pooled values, finer towards the tail; the estimates themselves are exact.
Intervals are widened by Student's t with blocks - 1 degrees of freedom, as few blocks vary less than their source.
Units: those of the values. Errors: none; what cannot be told is None.
Source: Kuensch, The jackknife and the bootstrap for general stationary observations, Ann. Statist. 17, 1989.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailspan_queries.stats_quantiles import Array, interpolated, interpolated_rows
from tailspan_queries.stats_student import student_quantile, student_tail

DRAWS = 500
BINS = 128
ENOUGH = 20_000
"""Values of each side that bins are placed by."""
LEAST_BLOCKS = 8
"""Blocks with requests that each side needs for an interval."""
SEED = 20_210_626
"""Of the draws: the same question has the same answer."""
NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Side:
    """Values (n,) of one side, with weight > 0, block and stratum of the request that each belongs to."""

    values: Array
    weights: Array
    blocks: NDArray[np.int64]
    strata: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Draws:
    """How often each draw has each block, (draws, blocks) a side, and how it weights the strata of the earlier side.

    `ratios` is (draws, strata), `sizes` the weights of all requests in each draw; the first draw is the data
    themselves: every block once.
    """

    before: Array
    after: Array
    ratios: Array
    sizes: tuple[Array, Array]
    usable_blocks: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One statistic: before, before as if with the later mix, after; `low` to `high` holds after - adjusted."""

    before: float
    adjusted: float
    after: float
    low: float | None
    high: float | None
    p_value: float | None


def draw(before: Side, after: Side, blocks: tuple[int, int], strata: int, *, paired: bool, draws: int = DRAWS) -> Draws:
    """Draw blocks; `before` and `after` hold one value for each request.

    `paired` draws the same blocks of both sides: where they are the same times, what happened then happened to both.
    """
    random = np.random.default_rng(SEED)
    counts_before = drawn(random, blocks[0], draws)
    counts_after = counts_before if paired and blocks[0] == blocks[1] else drawn(random, blocks[1], draws)
    totals_before = counts_before @ by_block(before, blocks[0], strata)
    totals_after = counts_after @ by_block(after, blocks[1], strata)
    usable = min(len(np.unique(before.blocks)), len(np.unique(after.blocks)))
    sizes = totals_before.sum(axis=1), totals_after.sum(axis=1)
    return Draws(counts_before, counts_after, mix_ratios(totals_before, totals_after), sizes, usable)


def drawn(random: np.random.Generator, blocks: int, draws: int) -> Array:
    """Return how often each block occurs in each draw, the first row being the data themselves."""
    rows: Array = np.full((draws + 1, blocks), 1.0)
    rows[1:] = random.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)
    return rows


def by_block(side: Side, blocks: int, strata: int) -> Array:
    """Return the weights of a side summed by block and stratum, (blocks, strata)."""
    cells = side.blocks * strata + side.strata
    sums: Array = np.bincount(cells, side.weights, blocks * strata).reshape(blocks, strata).astype(np.float64)
    return sums


def mix_ratios(before: Array, after: Array) -> Array:
    """Return by what to multiply each stratum of `before` (rows, strata) to have the shares of `after`."""
    share_before = before / np.maximum(before.sum(axis=1, keepdims=True), 1e-300)
    share_after = after / np.maximum(after.sum(axis=1, keepdims=True), 1e-300)
    ratios: Array = np.divide(share_after, share_before, out=np.zeros_like(after), where=share_before > 0)
    return ratios


def differences(before: Side, after: Side, draws: Draws, levels: Sequence[float]) -> list[Difference]:
    """Return the differences of the mean and of the quantiles at `levels`, in this order; both sides have values.

    A mean is over all requests, those without a value as 0; a quantile is over those that have one.
    """
    before, after = in_order(before), in_order(after)
    adjusted = before.weights * draws.ratios[0][before.strata]
    sizes = draws.sizes[0][0], draws.sizes[1][0]
    points = np.array(
        [
            point(before.values, before.weights, sizes[0], levels),
            point(before.values, adjusted, sizes[0], levels),
            point(after.values, after.weights, sizes[1], levels),
        ]
    )
    if draws.usable_blocks < LEAST_BLOCKS:
        return [Difference(float(a), float(b), float(c), None, None, None) for a, b, c in points.T]
    spread = resampled(before, after, draws, levels)
    blocks = draws.usable_blocks
    return [difference(column, offsets, blocks) for column, offsets in zip(points.T, spread.T, strict=True)]


def point(values: Array, weights: Array, size: float, levels: Sequence[float]) -> Array:
    """Return mean and quantiles of sorted values with these weights, of which some may be 0."""
    used = weights > 0
    if not used.any():
        return np.full(1 + len(levels), np.nan)
    # Not `@`: that would start threads for each of many small sums.
    return np.array([(values * weights).sum() / size, *interpolated(values[used], weights[used], levels)])


def in_order(side: Side) -> Side:
    """Return a side with its values in ascending order."""
    order = np.argsort(side.values)
    return Side(side.values[order], side.weights[order], side.blocks[order], side.strata[order])


def difference(points: Array, offsets: Array, blocks: int) -> Difference:
    """Put an interval around a difference from how far off the draws were."""
    before, adjusted, after = (float(value) for value in points)
    known = offsets[np.isfinite(offsets)]
    if len(known) < len(offsets) * 0.95 or not np.isfinite(points).all():
        return Difference(before, adjusted, after, None, None, None)
    widened = math.sqrt(blocks / (blocks - 1))
    factor = widened * student_quantile(0.05, blocks - 1) / NORMAL_95
    low, high = (float(offset) * factor for offset in np.quantile(known, [0.025, 0.975]))
    change = after - adjusted
    error = float(known.std()) * widened
    t = abs(change) / error if error > 0 else float("inf") if change else 0.0
    return Difference(before, adjusted, after, change + low, change + high, student_tail(t, blocks - 1))


def resampled(before: Side, after: Side, draws: Draws, levels: Sequence[float]) -> Array:
    """Return for each draw and statistic how far its difference is from that of the data, (draws, 1 + levels)."""
    edges, centers = bins(np.concatenate([thinned(before.values), thinned(after.values)]))
    unmixed = np.ones((len(draws.ratios), 1))
    found = []
    for side, counts, ratios, sizes in (
        (before, draws.before, draws.ratios, draws.sizes[0]),
        (after, draws.after, unmixed, draws.sizes[1]),
    ):
        strata = side.strata if ratios.shape[1] > 1 else np.zeros_like(side.strata)
        rows = reweighted(side, strata, np.searchsorted(edges, side.values, "right"), len(centers), counts, ratios)
        sums = reweighted(side, strata, np.zeros_like(strata), 1, counts, ratios, side.values)
        means = sums[:, 0] / np.maximum(sizes, 1e-300)
        found.append(np.column_stack([means, interpolated_rows(centers, rows, levels)]))
    changes = found[1] - found[0]
    offsets: Array = changes[1:] - changes[0]
    return offsets


def reweighted(
    side: Side,
    strata: NDArray[np.int64],
    places: NDArray[np.int64],
    width: int,
    counts: Array,
    ratios: Array,
    amounts: Array | float = 1.0,
) -> Array:
    """Return for each draw the sum of weight x amount in each of `width` bins, (draws, width)."""
    blocks, layers = counts.shape[1], ratios.shape[1]
    cells = (side.blocks * layers + strata) * width + places
    held = np.bincount(cells, side.weights * amounts, minlength=blocks * layers * width)
    # Single precision: a draw is an estimate, and this product is most of the work.
    drawn_cells = counts.astype(np.float32) @ held.reshape(blocks, layers * width).astype(np.float32)
    drawn_layers = drawn_cells.reshape(len(counts), layers, width)
    mixed: Array = np.einsum("dl,dlw->dw", ratios.astype(np.float32), drawn_layers).astype(np.float64)
    return mixed


def thinned(values: Array) -> Array:
    """Return sorted values, of very many only some: enough to place bins."""
    return values[:: max(1, len(values) // ENOUGH)]


def bins(values: Array) -> tuple[Array, Array]:
    """Return inner edges and centers of bins: one for each distinct value if these are few."""
    distinct = np.unique(values)
    if len(distinct) <= BINS:
        return distinct[1:], distinct
    half = BINS // 2
    levels = np.concatenate([np.linspace(0, 1, half, endpoint=False)[1:], 1 - np.geomspace(0.3, 1e-4, half)])
    edges = np.unique(np.quantile(values, np.sort(levels)))
    places = np.searchsorted(edges, values, "right")
    counts = np.bincount(places, minlength=len(edges) + 1)
    centers = np.bincount(places, values, minlength=len(edges) + 1) / np.maximum(counts, 1)
    # A bin without values keeps its lower edge, so that centers stay sorted.
    return edges, np.where(counts > 0, centers, np.concatenate([edges[:1], edges]))
