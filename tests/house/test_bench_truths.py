"""The benchmark of planted truths: its intervals, its judgement, and what it says without the traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import binomtest

from benchmarks import bench_truths
from benchmarks.bench_truths import DECISIONS, REPETITIONS, chosen, results, share, wilson
from benchmarks.truths_decisions import REPEATED
from tailspan.errors import UserError


@pytest.mark.parametrize(("hits", "count"), [(0, 200), (9, 200), (177, 200), (200, 200), (1, 3)])
def test_intervals_are_wilsons(hits: int, count: int) -> None:
    """The interval of a share is that of SciPy."""
    expected = binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_a_decision_is_held_to_its_goals_at_the_largest_size() -> None:
    """Small sizes are shown and not judged; a miss, a false alarm and what should be ignored each have their row."""
    asked = Counter({(key, planted): REPETITIONS for key in DECISIONS for planted in (True, False)})
    nothing: Counter[tuple[str, bool]] = Counter()
    fell = Counter({("shift_12.regress", True): 150, ("shift_12.regress", False): 20, ("mix_shift.regress", True): 30})
    rows = {row.name: row for row in results({1000: (nothing, asked), 2000: (fell, asked)})}
    assert rows["truths.shift_12.regress.found"].value == 0.75
    assert not rows["truths.shift_12.regress.found"].holds
    assert not rows["truths.shift_12.regress.false_alarms"].holds
    assert not rows["truths.mix_shift.regress.ignored_not"].holds
    assert rows["truths.control.regress.false_alarms"].holds
    assert share(fell, asked, ("shift_12.regress", True)) == "75.0 (69-80)"


def test_only_some_truths_are_repeated_where_these_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are, unless some are named; a name that is none is told, with those that are."""
    monkeypatch.delenv("TAILSPAN_BENCH_TRUTHS", raising=False)
    assert chosen() == list(REPEATED.values())
    monkeypatch.setenv("TAILSPAN_BENCH_TRUTHS", "even,starved")
    assert [repeat.__name__ for repeat in chosen()] == ["even", "starved"]
    monkeypatch.setenv("TAILSPAN_BENCH_TRUTHS", "starved,fair")
    with pytest.raises(UserError, match=r"names no truth: fair\. Name some of slow_worker, "):
        chosen()


def test_without_the_traces_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is absent is told, and there are no results."""
    monkeypatch.setenv("TAILSPAN_ARRIVALS", str(tmp_path))
    assert bench_truths.run() == []
    assert capsys.readouterr().err.count("nothing is measured") == 1
