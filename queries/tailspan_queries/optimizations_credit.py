"""How the credit for a change is divided among optimisations that were on together: Shapley values over measured runs.

In: the mean end-to-end time of runs, each with the set of optimisations that were on in it. Out: `Credit`.
The credit of one is what switching it on gained, averaged over the orders in which all can be switched on. Other than
leave-one-out or a ladder of steps it depends on no order, and the credits sum to the whole gain. Where a subset was
never run, only the orders all of whose steps were run count, and the report names what is missing.
Source: Shapley, "A Value for n-Person Games" (1953).
Units: ns a request. Errors: `UserError` for more optimisations than `MOST`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tailspan.errors import UserError
from tailspan_queries.times import Window

MOST = 12
"""Optimisations that are compared at once: they have 4,096 subsets."""


@dataclass(frozen=True, slots=True)
class Run:
    """A window, the ids of the optimisations that were on in it, and its mean end-to-end time, ns a request."""

    window: Window
    on: frozenset[str]
    mean_ns: float = 0.0
    requests: float = 0.0


@dataclass(frozen=True, slots=True)
class Credit:
    """What each optimisation gained, ns a request; empty where no order of switching on was run in full."""

    players: tuple[str, ...]
    values_ns: Mapping[str, float]
    orders: int
    """Orders of switching on all of whose steps were run."""
    all_orders: int
    runs: tuple[Run, ...]
    missing: tuple[frozenset[str], ...]
    """Subsets that were never run, the smallest first."""

    @property
    def is_complete(self) -> bool:
        """Whether every subset was run, so that these are Shapley's values."""
        return not self.missing


def divide(players: Sequence[str], runs: Sequence[Run]) -> Credit:
    """Return the credit of each player; runs of the same subset count by their requests.

    Raises: UserError if there are more than `MOST` players.
    """
    if len(players) > MOST:
        raise UserError(
            f"{len(players)} optimisations have {2 ** len(players):,} subsets",
            f"Divide the credit among {MOST} at most: name them with --run",
        )
    costs = means(runs)
    values, orders = shapley(players, {subset: -mean for subset, mean in costs.items()})
    missing = tuple(
        subset
        for size in range(len(players) + 1)
        for subset in map(frozenset, combinations(players, size))
        if subset not in costs
    )
    return Credit(tuple(players), values, orders, math.factorial(len(players)), tuple(runs), missing)


def means(runs: Sequence[Run]) -> dict[frozenset[str], float]:
    """Return the mean end-to-end time of each subset that was run."""
    weights: dict[frozenset[str], float] = {}
    sums: dict[frozenset[str], float] = {}
    for run in runs:
        if run.requests > 0:
            weights[run.on] = weights.get(run.on, 0.0) + run.requests
            sums[run.on] = sums.get(run.on, 0.0) + run.mean_ns * run.requests
    return {subset: sums[subset] / weight for subset, weight in weights.items()}


def shapley(players: Sequence[str], worth: Mapping[frozenset[str], float]) -> tuple[dict[str, float], int]:
    """Return what each player adds on average over the orders whose every step has a worth, and how many these are.

    With all subsets these are Shapley's values. Without a single such order there is no credit. The orders through a
    step are counted, not listed: those that lead to its subset times those that lead on from it, O(n * 2^n).
    """
    everybody = frozenset(players)
    by_size = [
        [subset for subset in map(frozenset, combinations(players, size)) if subset in worth]
        for size in range(len(players) + 1)
    ]
    to: dict[frozenset[str], int] = {frozenset(): 1} if frozenset() in worth else {}
    for subset in (subset for sized in by_size[1:] for subset in sized):
        to[subset] = sum(to.get(subset - {player}, 0) for player in subset)
    onward: dict[frozenset[str], int] = {everybody: 1} if everybody in worth else {}
    for subset in (subset for sized in reversed(by_size[:-1]) for subset in sized):
        onward[subset] = sum(onward.get(subset | {player}, 0) for player in everybody - subset)
    orders = onward.get(frozenset(), 0) if frozenset() in to else 0
    if not orders:
        return {}, 0
    added = dict.fromkeys(players, 0.0)
    for subset in to:
        for player in everybody - subset:
            ways = to[subset] * onward.get(subset | {player}, 0)
            if ways:
                added[player] += ways / orders * (worth[subset | {player}] - worth[subset])
    return added, orders
