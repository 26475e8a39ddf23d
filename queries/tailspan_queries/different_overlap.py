"""Are two findings the same requests? How a finding overlaps with those before it.

In: groups in the order of their rank, and the numbers of the requests that all groups were sampled from (some 1,000
slow ones and 3,000 others at most; the slow ones are even). Out: an `Overlap` or None for each. Pure functions.
Sets of requests are whole numbers with a bit for each, so that hundreds of pairs of groups take no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from tailspan_queries.different_groups import Group

SAME = 0.8
"""Share of the requests of either group that are in both, from which on the two are the same."""
BEYOND_CHANCE = 0.1
"""By how much the share of slow requests that a group has in common with another must exceed the other's share."""
SURE = 0.05
LEAST_VARIANCE = 0.5
"""Variance of the count of slow requests below which two groups cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How a finding relates to one that ranks before it.

    `same`: nearly the same requests. `explained`: within the other group and outside of it, this one is not
    over-represented beyond chance. `partly`: it is, although they have slow requests in common.
    `common_ratio` is the share of the finding's slow requests that the other has too.
    """

    kind: Literal["same", "explained", "partly"]
    other: str
    common_ratio: float


def overlaps(groups: Sequence[Group], everything: frozenset[int]) -> list[Overlap | None]:
    """Return for each group the strongest relation to one before it."""
    numbers = np.array(sorted(everything), dtype=np.uint64)
    slow, everyone = bits(numbers % 2 == 0), bits(np.ones(len(numbers), dtype=bool))
    held = [bits(np.isin(numbers, np.fromiter(group.members, np.uint64))) for group in groups]
    return [
        strongest([relation(mine, held[rank], groups[rank].name, slow, everyone) for rank in range(place)])
        for place, mine in enumerate(held)
    ]


def bits(chosen: npt.NDArray[np.bool_]) -> int:
    """Return a set of requests."""
    return int.from_bytes(np.packbits(chosen).tobytes(), "big") >> (-len(chosen) % 8)


def strongest(found: Sequence[Overlap | None]) -> Overlap | None:
    """Return the relation that says most, and of those the one with most in common."""
    order = {"same": 0, "explained": 1, "partly": 2}
    known = [overlap for overlap in found if overlap is not None]
    return min(known, key=lambda overlap: (order[overlap.kind], -overlap.common_ratio), default=None)


def relation(mine: int, theirs: int, name: str, slow: int, everyone: int) -> Overlap | None:
    """Compare a group with another one, `name`, over the sampled requests."""
    my_slow, their_slow = (mine & slow).bit_count(), (theirs & slow).bit_count()
    if not my_slow or not their_slow:
        return None
    ratio = (mine & theirs & slow).bit_count() / my_slow
    if alike(mine & slow, theirs & slow) and alike(mine & ~slow, theirs & ~slow):
        return Overlap("same", name, ratio)
    if not stands_alone(mine, slow, (theirs, everyone & ~theirs)):
        return Overlap("explained", name, ratio)
    usual = their_slow / slow.bit_count()
    return Overlap("partly", name, ratio) if ratio >= usual + BEYOND_CHANCE else None


def alike(one: int, other: int) -> bool:
    """Whether two sets are nearly the same."""
    return (one & other).bit_count() >= SAME * (one | other).bit_count()


def stands_alone(group: int, slow: int, strata: Sequence[int]) -> bool:
    """Whether a group is over-represented among slow requests with another one held fixed.

    The test of Mantel and Haenszel (1959) over two strata, the requests within the other group and those outside of it.
    That slow requests and others are sampled at different rates leaves it as it is.
    """
    excess = variance = 0.0
    for stratum in strata:
        count, mine, hits = stratum.bit_count(), (stratum & group).bit_count(), (stratum & slow).bit_count()
        if count > 1:
            excess += (stratum & group & slow).bit_count() - mine * hits / count
            variance += mine * hits * (count - mine) * (count - hits) / (count * count * (count - 1))
    if variance < LEAST_VARIANCE:
        return False
    return excess / math.sqrt(variance) >= -NormalDist().inv_cdf(SURE)
