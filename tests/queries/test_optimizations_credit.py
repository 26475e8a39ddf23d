"""Shared credit against brute force over all orders."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tailspan.errors import UserError
from tailspan_queries.optimizations_credit import MOST, Run, divide, means, shapley
from tailspan_queries.times import Window

Subset = frozenset[str]
WINDOW = Window(0, 1)


def subsets(players: str) -> list[Subset]:
    """Return all subsets of players, each a letter."""
    return [frozenset(found) for size in range(len(players) + 1) for found in itertools.combinations(players, size)]


def brute_force(players: str, worth: dict[Subset, float]) -> tuple[dict[str, float], int]:
    """Return the mean of what each player adds over every order all of whose steps have a worth."""
    added: dict[str, list[float]] = {player: [] for player in players}
    orders = 0
    for order in itertools.permutations(players):
        steps = [frozenset(order[:size]) for size in range(len(order) + 1)]
        if all(step in worth for step in steps):
            orders += 1
            for player, before, after in zip(order, steps, steps[1:], strict=False):
                added[player].append(worth[after] - worth[before])
    return {player: float(np.mean(values)) for player, values in added.items() if values}, orders


@pytest.mark.parametrize("players", ["a", "ab", "abc", "abcdef"])
def test_with_all_subsets_these_are_the_values_of_shapley(players: str) -> None:
    """Every order counts, and the credits sum to the whole gain."""
    rng = np.random.default_rng(len(players))
    worth = {subset: float(rng.normal(0, 100)) for subset in subsets(players)}
    values, orders = shapley(players, worth)
    expected, all_orders = brute_force(players, worth)
    assert orders == all_orders == math.factorial(len(players))
    assert values == pytest.approx(expected)
    assert sum(values.values()) == pytest.approx(worth[frozenset(players)] - worth[frozenset()])


@pytest.mark.parametrize("seed", range(40))
def test_with_missing_subsets_only_orders_that_were_run_count(seed: int) -> None:
    """Whichever subsets are missing, credit and number of orders are those of brute force."""
    rng = np.random.default_rng(seed)
    players = "abcde"[: 2 + seed % 4]
    worth = {subset: float(rng.normal(0, 100)) for subset in subsets(players) if rng.random() < 0.75}
    values, orders = shapley(players, worth)
    expected, all_orders = brute_force(players, worth)
    assert orders == all_orders
    assert values == pytest.approx(expected)


def test_two_that_do_the_same_share_the_credit() -> None:
    """Either of two saves 100, both together no more: 50 each; leave-one-out would say that neither saves anything."""
    times = {"": 400.0, "a": 300.0, "b": 300.0, "ab": 300.0}
    runs = [Run(WINDOW, frozenset(on), mean_ns, 10) for on, mean_ns in times.items()]
    credit = divide(("a", "b"), runs)
    assert credit.values_ns == {"a": 50.0, "b": 50.0}
    assert credit.is_complete
    assert (credit.orders, credit.all_orders) == (2, 2)


def test_what_was_never_run_is_named() -> None:
    """A ladder is one order of two; without a common start there is no credit at all."""
    runs = [Run(WINDOW, frozenset(on), mean_ns, 10) for on, mean_ns in (("", 400.0), ("a", 300.0), ("ab", 250.0))]
    credit = divide(("a", "b"), runs)
    assert credit.values_ns == {"a": 100.0, "b": 50.0}
    assert (credit.orders, credit.missing) == (1, (frozenset("b"),))
    torn = divide(("a", "b"), [runs[0], runs[2]])
    assert (torn.values_ns, torn.orders) == ({}, 0)
    assert torn.missing == (frozenset("a"), frozenset("b"))


def test_runs_of_one_subset_count_by_their_requests() -> None:
    """Repeated runs are one with the mean over all their requests; a run without requests is none."""
    runs = [Run(WINDOW, frozenset(), 100.0, 30), Run(WINDOW, frozenset(), 200.0, 10), Run(WINDOW, frozenset("a"), 0, 0)]
    assert means(runs) == {frozenset(): 125.0}


def test_too_many_are_refused() -> None:
    """Credit among more than can be counted is an error that says so."""
    players = [str(number) for number in range(MOST + 1)]
    with pytest.raises(UserError, match="13 optimisations have 8,192 subsets"):
        divide(players, [])
