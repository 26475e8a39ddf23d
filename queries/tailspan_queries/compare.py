"""Whether latency changed between two windows or versions, at the median and in the tail, and what the mix did of it.

In: two samples of requests. Out: `Comparison`: each statistic of each part with its interval and verdict, and findings.
The earlier requests are weighted to the later mix of prompt and output lengths (`stats_strata`), intervals come from
blocks of time (`stats_blocks`). A percentile needs `BEYOND` requests beyond it on each side, and an effective number
of them after weighting; a mean needs `FOR_MEAN`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tailspan_queries import compare_findings as findings
from tailspan_queries.client import Client
from tailspan_queries.compare_read import DEFAULT_LIMIT, read_samples
from tailspan_queries.compare_records import (
    LEVELS,
    REQUEST,
    STATISTICS,
    TTFT,
    Comparison,
    Group,
    Line,
    MixEffect,
    Sample,
)
from tailspan_queries.records import STAGE_ORDER
from tailspan_queries.stats_blocks import DRAWS, Difference, Draws, Side, differences, draw
from tailspan_queries.stats_quantiles import quantiles
from tailspan_queries.stats_strata import Strata, single, stratify

BEYOND = 10
"""Requests beyond a percentile, on each side, from which on it is told."""
FOR_MEAN = 30
PARTS_FIRST = (REQUEST, TTFT)


def compare_groups(
    client: Client, before: Group, after: Group, *, adjust: bool = True, limit: int | None = DEFAULT_LIMIT
) -> Comparison:
    """Read both sides, of each about `limit` requests or with None all, and compare them."""
    return compare(*read_samples(client, before, after, limit), adjust=adjust)


def compare(before: Sample, after: Sample, *, adjust: bool = True, draws: int = DRAWS) -> Comparison:
    """Compare two samples; with `adjust`, as if both had the prompt and output lengths of the later one."""
    if not before.size or not after.size:
        return Comparison(before, after, adjust, 1, ())
    strata = single(before.size, after.size)
    if adjust:
        strata = stratify((before.input_tokens, before.output_tokens), (after.input_tokens, after.output_tokens))
    sides = whole(before, strata.before), whole(after, strata.after)
    paired = before.group.windows == after.group.windows
    drawn = draw(*sides, (before.block_count, after.block_count), strata.count, paired=paired, draws=draws)
    lines = tuple(line for part in order(before, after) for line in lines_of(part, before, after, strata, drawn))
    mix = mix_effects(before, strata, drawn) if adjust else ()
    found = Comparison(before, after, adjust, strata.count, lines, mix)
    return replace(found, findings=findings.findings(found), cautions=findings.cautions(found, strata))


def whole(sample: Sample, strata: NDArray[np.int64]) -> Side:
    """Return all requests of a sample as a side."""
    return Side(np.ones(sample.size), sample.weights, sample.blocks, strata)


def order(before: Sample, after: Sample) -> list[str]:
    """Return the parts of both: end-to-end, TTFT, then the stages as a request goes through them."""
    names = set(before.parts) | set(after.parts)
    known = [*PARTS_FIRST, *STAGE_ORDER[:-2]]
    others = sorted(names - {*known, *STAGE_ORDER[-2:]})
    return [name for name in (*known, *others, STAGE_ORDER[-2]) if name in names]


def lines_of(part: str, before: Sample, after: Sample, strata: Strata, drawn: Draws) -> list[Line]:
    """Return the lines of one part, a statistic each."""
    sides = side(before, strata.before, part), side(after, strata.after, part)
    counts = len(sides[0].values), len(sides[1].values)
    if not all(counts):
        return [absent(part, name, sides) for name in STATISTICS]
    enough = effective(sides[0].weights * drawn.ratios[0][sides[0].strata]), effective(sides[1].weights)
    if not enough[0]:
        return [absent(part, name, sides) for name in STATISTICS]
    found = differences(*sides, drawn, LEVELS)
    return [
        line(part, name, counts, difference, few=min(enough) < needed(STATISTICS[name]))
        for name, difference in zip(STATISTICS, found, strict=True)
    ]


def mix_effects(before: Sample, strata: Strata, drawn: Draws) -> tuple[MixEffect, ...]:
    """Return what the later lengths do to the end-to-end time of the earlier requests, as draws of these have it."""
    earlier = side(before, strata.before, REQUEST)
    alone = replace(drawn, after=drawn.before, sizes=(drawn.sizes[0], drawn.sizes[0]))
    found = differences(earlier, earlier, alone, LEVELS) if earlier.values.size else []
    return tuple(
        MixEffect(name, one.adjusted / one.before - 1, share(one.high, one.before), share(one.low, one.before))
        for name, one in zip(STATISTICS, found, strict=False)
        if one.before > 0 and math.isfinite(one.adjusted)
    )


def share(back_ns: float | None, before_ns: float) -> float | None:
    """Return the bound of a way back, from the later lengths to the earlier ones, as a share of the way there."""
    return None if back_ns is None else -back_ns / before_ns


def side(sample: Sample, strata: NDArray[np.int64], part: str) -> Side:
    """Return one part of a sample; without values where no request has it."""
    if part not in sample.parts:
        nothing = np.zeros(0, np.int64)
        return Side(np.zeros(0), np.zeros(0), nothing, nothing)
    requests = sample.parts[part].requests
    return Side(sample.parts[part].wall_ns, sample.weights[requests], sample.blocks[requests], strata[requests])


def effective(weights: NDArray[np.float64]) -> float:
    """Return how many requests of equal weight would tell as much (Kish)."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def needed(level: float | None) -> int:
    """Return how many requests a statistic needs on each side."""
    return FOR_MEAN if level is None else round(BEYOND / (1 - level))


def line(part: str, statistic: str, counts: Sequence[int], found: Difference, *, few: bool) -> Line:
    """Return the record of a difference; without interval if the requests are too few for one."""
    interval = (None, None, None) if few else (found.low, found.high, found.p_value)
    return Line(part, statistic, counts[0], counts[1], found.before, found.adjusted, found.after, *interval, few)


def absent(part: str, statistic: str, sides: tuple[Side, Side]) -> Line:
    """Return the line of a part that the sides do not both have, or of lengths that they do not share."""
    before, after = (value(one, STATISTICS[statistic]) for one in sides)
    counts = len(sides[0].values), len(sides[1].values)
    return Line(part, statistic, *counts, before, None, after, None, None, None, too_few=True)


def value(one: Side, level: float | None) -> float | None:
    """Return one statistic of one side; None without values."""
    if not one.values.size:
        return None
    if level is None:
        return float(np.average(one.values, weights=one.weights))
    return float(quantiles(one.values, one.weights, [level])[0])
