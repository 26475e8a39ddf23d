"""Strata of requests by prompt and output length, to compare two samples as if both had the same mix.

In: tokens of the requests of two samples. Out: the stratum of each request, and how often each occurs.
A stratum is a cell of prompt length x output length; the bounds are quantiles of both samples together, finer where
lengths are largest, since these make the tail. Neighbours are joined until a stratum has `LEAST` requests of each
sample, so that no request of one sample has to stand for a length that it never had.
Source: post-stratification (Holt and Smith, Post Stratification, J. R. Stat. Soc. A 142, 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

OUTPUT_LEVELS = (*(level / 20 for level in range(1, 19)), 0.925, 0.95, 0.97, 0.985, 0.995)
PROMPT_LEVELS = (0.33, 0.67, 0.95)
LEAST = 5
"""Requests of each sample in a stratum."""


@dataclass(frozen=True, slots=True)
class Strata:
    """The stratum of each request of two samples; `uncovered_ratio` of the later one had lengths new to the earlier."""

    before: Integers
    after: Integers
    count: int
    uncovered_ratio: float


def single(before: int, after: int) -> Strata:
    """Return one stratum for all requests: nothing is adjusted."""
    return Strata(np.zeros(before, np.int64), np.zeros(after, np.int64), 1, 0.0)


def stratify(before: tuple[Integers, Integers], after: tuple[Integers, Integers]) -> Strata:
    """Divide requests, each sample given as prompt tokens (n,) and output tokens (n,)."""
    if not before[0].size or not after[0].size:
        return single(before[0].size, after[0].size)
    prompts = bounds(np.concatenate([before[0], after[0]]), PROMPT_LEVELS)
    outputs = bounds(np.concatenate([before[1], after[1]]), OUTPUT_LEVELS)
    cells_before = cells(before, prompts, outputs)
    cells_after = cells(after, prompts, outputs)
    size = (len(prompts) + 1) * (len(outputs) + 1)
    counts_before = np.bincount(cells_before, minlength=size)
    counts_after = np.bincount(cells_after, minlength=size)
    joined = join(counts_before, counts_after)
    uncovered = counts_after[counts_before == 0].sum() / counts_after.sum()
    return Strata(joined[cells_before], joined[cells_after], int(joined.max()) + 1, float(uncovered))


def bounds(tokens: Integers, levels: Sequence[float]) -> Integers:
    """Return the distinct quantiles of token counts, as whole numbers; a value at a bound belongs below it."""
    return np.unique(np.quantile(tokens, levels, method="inverted_cdf")).astype(np.int64)


def cells(tokens: tuple[Integers, Integers], prompts: Integers, outputs: Integers) -> Integers:
    """Return the cell of each request, numbered so that neighbours in number are neighbours in length."""
    prompt = np.searchsorted(prompts, tokens[0], side="left")
    output = np.searchsorted(outputs, tokens[1], side="left")
    width = len(prompts) + 1
    # Every other row backwards, as an ox ploughs.
    turned = np.where(output % 2 == 0, prompt, width - 1 - prompt)
    return (output * width + turned).astype(np.int64)


def join(before: Integers, after: Integers) -> Integers:
    """Return the stratum of each cell: cells in order, as many as make `LEAST` of each sample."""
    stratum = np.zeros(len(before), np.int64)
    number = held_before = held_after = 0
    for cell in range(len(before)):
        stratum[cell] = number
        held_before += int(before[cell])
        held_after += int(after[cell])
        if held_before >= LEAST and held_after >= LEAST:
            number, held_before, held_after = number + 1, 0, 0
    if number and (held_before < LEAST or held_after < LEAST):
        stratum[stratum == number] = number - 1
    return stratum
