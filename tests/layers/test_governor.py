"""The budget of sampling: never above it, no phase left out, no lock to a period."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailspan.layers.governor import FIRST_COST_NS, INTERVAL_NS, Governor

MS = 1_000_000
PHASES = st.sampled_from(["prefill", "decode"])
STEP = st.tuples(PHASES, st.integers(10_000, 2_000 * MS))


def run(governor: Governor, steps: list[tuple[str, int]], costs: Random, worst_ns: int) -> list[tuple[str, int, int]]:
    """Run steps; return (phase, wall ns, cost ns) of each, cost 0 without a sample. Part of it is known only later."""
    history = []
    for phase, wall_ns in steps:
        cost_ns = 0
        if governor.wants(phase):
            cost_ns = costs.randint(1, worst_ns)
            governor.sampled(phase, cost_ns // 3)
            governor.charge(phase, cost_ns - cost_ns // 3)
        governor.stepped(phase, wall_ns)
        history.append((phase, wall_ns, cost_ns))
    return history


@settings(max_examples=200)
@given(st.lists(STEP, min_size=1, max_size=120), st.floats(0.0005, 0.1), st.integers(1, 20 * MS), st.integers(0, 2**32))
def test_cost_never_exceeds_the_budget(steps: list[tuple[str, int]], budget: float, worst: int, seed: int) -> None:
    """Over any stretch of steps each phase spends at most its budget, the credit it had, and one sample."""
    history = run(Governor(budget, random=Random(seed), interval_ns=0), steps, Random(seed), worst)
    for phase in ("prefill", "decode"):
        mine = [(wall, cost) for name, wall, cost in history if name == phase]
        assert sum(cost for _, cost in mine) <= budget * sum(wall for wall, _ in mine) + worst + 1
        for first in range(0, len(mine), 7):
            window = mine[first:]
            allowed = budget * sum(wall for wall, _ in window) + 2 * max(worst, FIRST_COST_NS) + worst
            assert sum(cost for _, cost in window) <= allowed + 1


@given(st.lists(st.tuples(PHASES, st.integers(10 * MS, 2_000 * MS)), min_size=1, max_size=20), st.integers(0, 2**32))
def test_every_phase_that_takes_time_is_sampled(pattern: list[tuple[str, int]], seed: int) -> None:
    """A phase whose budget pays for a sample several times over has samples, whatever the other phase does."""
    cost, budget = MS, 0.005
    governor = Governor(budget, random=Random(seed))
    total = sum(wall for _, wall in pattern)
    repeats = -(-10_000 * MS // total)
    samples: dict[str, int] = {}
    for phase, wall_ns in pattern * repeats:
        if governor.wants(phase):
            governor.sampled(phase, cost)
            samples[phase] = samples.get(phase, 0) + 1
        governor.stepped(phase, wall_ns)
    for phase in {name for name, _ in pattern}:
        mine = [wall for name, wall in pattern * repeats if name == phase]
        affordable = budget * sum(mine) / max(cost, FIRST_COST_NS)
        visits = len(mine)
        if affordable >= 4 and visits >= 4:
            assert samples.get(phase, 0) >= 1


def test_a_long_prefill_does_not_pay_for_decode() -> None:
    """The time of one phase buys samples of that phase only."""
    governor = Governor(random=Random(1))
    for _ in range(100):
        governor.stepped("prefill", 1000 * MS)
    assert governor.wants("prefill")
    assert not governor.wants("decode")
    governor.stepped("decode", MS)
    assert not governor.wants("decode")


def test_nothing_is_sampled_without_budget() -> None:
    """A budget of 0 turns layer timings off."""
    governor = Governor(0.0, interval_ns=0, first_cost_ns=0)
    for _ in range(100):
        assert not governor.wants("decode")
        governor.stepped("decode", 1000 * MS)


def test_budget_is_used() -> None:
    """With steps of 20 ms and samples of 2 ms the governor spends most of 0.5 %."""
    governor, spent = Governor(random=Random(2)), 0
    for _ in range(20_000):
        if governor.wants("decode"):
            governor.sampled("decode", 2 * MS)
            spent += 2 * MS
        governor.stepped("decode", 20 * MS)
    assert 0.9 < spent / (0.005 * 20_000 * 20 * MS) <= 1


def test_cheap_samples_keep_an_interval() -> None:
    """However cheap a sample is, there are at most ten a second."""
    governor, samples = Governor(random=Random(3)), 0
    for _ in range(10_000):
        if governor.wants("decode"):
            governor.sampled("decode", 1000)
            samples += 1
        governor.stepped("decode", 10 * MS)
    assert 50 <= samples <= 10_000 * 10 * MS // INTERVAL_NS


@pytest.mark.parametrize("period", [2, 3, 8, 10, 16, 25])
def test_sampling_does_not_lock_to_a_period(period: int) -> None:
    """In a load that repeats after some steps, each of them is sampled about equally often."""
    governor, hits = Governor(random=Random(4)), [0] * period
    for step in range(100_000):
        if governor.wants("decode"):
            governor.sampled("decode", MS // 2)
            hits[step % period] += 1
        governor.stepped("decode", 10 * MS)
    expected = sum(hits) / period
    assert min(hits) > 0.6 * expected
    assert max(hits) < 1.5 * expected


def test_slowdown_of_the_sampled_step_is_cost() -> None:
    """Where a sampled step runs in a slower way, what it took above the usual is paid from the budget."""
    governor, slow, total = Governor(slows_step=True, random=Random(5)), 0, 0
    for _ in range(50_000):
        wall_ns = 5 * MS
        if governor.wants("decode"):
            governor.sampled("decode", MS // 2)
            wall_ns = 15 * MS
            slow += 10 * MS + MS // 2
        governor.stepped("decode", wall_ns)
        total += wall_ns
    assert 0.003 < slow / total <= 0.0051


def test_steps_of_a_sample_add_up() -> None:
    """Each step is counted by exactly one sample, a lost sample's step by the next."""
    governor, stood_for, steps = Governor(random=Random(6), interval_ns=0), 0, 0
    waiting = 0
    for step in range(5000):
        waiting += 1
        if governor.wants("decode"):
            kept = step % 3 != 0
            counted = governor.sampled("decode", MS // 2, kept=kept)
            assert counted == (waiting if kept else 0)
            stood_for += counted
            waiting = 0 if kept else waiting
        governor.stepped("decode", 10 * MS)
        steps += 1
    assert stood_for == steps - waiting
