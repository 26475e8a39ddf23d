"""Are two findings the same requests? How a finding overlaps with those before it.

In: groups in the order of their rank, and the numbers of the requests that all groups were sampled from (1,000 slow
ones and 3,000 others at most). Out: an `Overlap` or None for each. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from tailspan_queries.different_groups import SLOW_MEMBERS, Group

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
    return [
        strongest([relation(group, other, everything) for other in groups[:place]])
        for place, group in enumerate(groups)
    ]


def strongest(found: Sequence[Overlap | None]) -> Overlap | None:
    """Return the relation that says most, and of those the one with most in common."""
    order = {"same": 0, "explained": 1, "partly": 2}
    known = [overlap for overlap in found if overlap is not None]
    return min(known, key=lambda overlap: (order[overlap.kind], -overlap.common_ratio), default=None)


def relation(group: Group, other: Group, everything: frozenset[int]) -> Overlap | None:
    """Compare two groups over the sampled requests."""
    mine, theirs = group.slow_members, other.slow_members
    if not mine or not theirs:
        return None
    ratio = len(mine & theirs) / len(mine)
    if alike(mine, theirs) and alike(group.members - mine, other.members - theirs):
        return Overlap("same", other.name, ratio)
    if not stands_alone(group, other, everything):
        return Overlap("explained", other.name, ratio)
    usual = len(theirs) / sum(number < SLOW_MEMBERS for number in everything)
    return Overlap("partly", other.name, ratio) if ratio >= usual + BEYOND_CHANCE else None


def alike(one: frozenset[int], other: frozenset[int]) -> bool:
    """Whether two sets are nearly the same."""
    return len(one & other) >= SAME * len(one | other)


def stands_alone(group: Group, other: Group, everything: frozenset[int]) -> bool:
    """Whether a group is over-represented among slow requests with the other one held fixed.

    The test of Mantel and Haenszel (1959) over two strata, the requests within the other group and those outside of it.
    That slow requests and others are sampled at different rates leaves it as it is.
    """
    excess = variance = 0.0
    for stratum in (everything & other.members, everything - other.members):
        count, mine = len(stratum), len(stratum & group.members)
        slow = sum(number < SLOW_MEMBERS for number in stratum)
        if count > 1:
            excess += len(stratum & group.slow_members) - mine * slow / count
            variance += mine * slow * (count - mine) * (count - slow) / (count * count * (count - 1))
    if variance < LEAST_VARIANCE:
        return False
    return excess / math.sqrt(variance) >= -NormalDist().inv_cdf(SURE)
