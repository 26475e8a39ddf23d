"""The statistics against SciPy, and how often nothing is taken for something."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tailspan_queries import significance
from tailspan_queries.different import judge
from tailspan_queries.stats_student import student_greater
from tests.queries.contribution import traffic

REPETITIONS = 120


@given(st.integers(1, 400), st.data())
@settings(max_examples=200, deadline=None)
def test_fishers_test_is_that_of_scipy(everything: int, data: st.DataObject) -> None:
    """The chance of as many hits or more in a group equals SciPy's for any table."""
    group = data.draw(st.integers(0, everything))
    slow = data.draw(st.integers(0, everything))
    both = data.draw(st.integers(max(group + slow - everything, 0), min(group, slow)))
    table = [[both, group - both], [slow - both, everything - group - slow + both]]
    expected = stats.fisher_exact(table, alternative="greater").pvalue
    assert significance.fisher_greater(both, group, slow, everything) == pytest.approx(expected, rel=1e-8, abs=1e-300)


@given(st.floats(-60, 60), st.floats(1, 500))
@settings(max_examples=200, deadline=None)
def test_students_t_is_that_of_scipy(t: float, freedom: float) -> None:
    """The chance that t is exceeded equals SciPy's, far into the tail."""
    assert student_greater(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-7, abs=1e-300)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_corrected_rates_are_those_of_scipy(chances: list[float]) -> None:
    """The rates of Benjamini and Hochberg equal SciPy's, ties and extremes included."""
    assert significance.benjamini_hochberg(chances) == pytest.approx(stats.false_discovery_control(chances))


def test_welchs_test_is_that_of_scipy() -> None:
    """The chance of a higher mean equals SciPy's; nothing to compare is no rise."""
    rng = np.random.default_rng(1)
    for shift in (-1, 0, 0.5, 2):
        before, after = rng.normal(0, 1, 8), rng.normal(shift, 3, 9)
        expected = stats.ttest_ind(after, before, equal_var=False, alternative="greater").pvalue
        assert significance.welch_greater(before.tolist(), after.tolist()) == pytest.approx(expected, rel=1e-9)
    assert significance.welch_greater([0.1], [0.2, 0.3]) == 1
    assert significance.welch_greater([0, 0], [0, 0]) == 1
    assert significance.welch_greater([0, 0], [1, 1]) == 0


def test_excess_by_block_is_a_one_sample_t_test() -> None:
    """The chance over blocks is SciPy's t test of what each block adds to the covariance."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(80, 120, 32).astype(float)
    group, slow = (
        rng.binomial(sizes.astype(int), 0.3).astype(float),
        rng.binomial(sizes.astype(int), 0.05).astype(float),
    )
    both = rng.binomial(slow.astype(int), 0.45).astype(float)
    x, y = group.sum() / sizes.sum(), slow.sum() / sizes.sum()
    excess = both - x * slow - y * group + x * y * sizes
    found = significance.blocks_greater(group.tolist(), both.tolist(), sizes.tolist(), slow.tolist())
    assert found == pytest.approx(stats.ttest_1samp(excess, 0, alternative="greater").pvalue, rel=1e-9)
    assert found < 0.05


def test_a_group_that_was_slow_once_is_no_surprise() -> None:
    """Fifty slow requests in one block of time are one event: the chance stays large."""
    sizes, nothing = [100.0] * 32, [0.0] * 31
    found = significance.blocks_greater([100.0, *nothing], [50.0, *nothing], sizes, [50.0, *nothing])
    assert found > 0.1


def test_the_lower_bound_belongs_to_the_test() -> None:
    """The interval leaves out 1 exactly where the two-sided test is below 5 %, and nears the ratio with certainty."""
    assert significance.lower_bound(3, 0.025) == pytest.approx(1)
    assert significance.lower_bound(3, 0.2) < 1
    assert 1 < significance.lower_bound(3, 1e-3) < significance.lower_bound(3, 1e-100) < 3
    assert significance.lower_bound(0.5, 0.9) == 0.5


def structureless(seed: int, bursts: bool) -> int:
    """Return how many findings there are in traffic of which no label has to do with being slow."""
    rng = np.random.default_rng(seed)
    count = 2000
    noise = rng.normal(0, 0.6, count)
    level = np.zeros(count)
    if bursts:
        # Slow times that last for some 50 requests, and instances that change every 40: both vary slowly.
        level = np.repeat(rng.normal(0, 0.6, count // 50), 50)
    labels = {f"attribute-{number}": rng.integers(0, 2 + number % 5, count) for number in range(10)}
    if bursts:
        labels |= {f"slowly-{number}": np.repeat(rng.integers(0, 4, count // 40), 40) for number in range(3)}
    texts = {name: [f"v{value}" for value in values.tolist()] for name, values in labels.items()}
    texts["gen_ai.usage.input_tokens"] = [str(1 << value) for value in rng.integers(0, 11, count)]
    rows = traffic.rows_of(texts, np.exp(level + noise), 0.02)
    return len(judge(rows)[2])


@pytest.mark.parametrize("bursts", [False, True], ids=["independent", "bursts"])
def test_nothing_is_found_where_nothing_is(bursts: bool) -> None:
    """Of 120 windows without structure at most one in twenty shows anything, also if slow requests come in bursts."""
    shown = sum(structureless(seed, bursts) > 0 for seed in range(REPETITIONS))
    print(f"{shown} of {REPETITIONS} windows without structure show a finding")
    assert shown <= 0.05 * REPETITIONS


def test_a_planted_group_is_found() -> None:
    """Of 40 windows in which 3 % of the requests of one value of forty are slow, at least 36 show it first."""
    first = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = rng.integers(0, 4, 8000)
        e2e = rng.lognormal(0, 0.5, 8000) + np.where((values == 3) & (rng.random(8000) < 0.03), 10, 0)
        labels = {"planted": [f"v{value}" for value in values]}
        labels |= {f"noise-{n}": [f"v{value}" for value in rng.integers(0, 4, 8000)] for n in range(9)}
        found = judge(traffic.rows_of(labels, e2e, 0.01))[2]
        first += bool(found) and found[0].name == "planted v3"
    assert first >= 36
