"""Geometry of the waterfall."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from tailspan_queries import waterfall

moments = st.integers(0, 1000)
intervals = st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair)))


@given(intervals, st.lists(intervals, max_size=8))
@example((0, 2), [(1, 1)])
def test_gaps_are_exactly_what_nothing_covers(whole: tuple[int, int], covered: list[tuple[int, int]]) -> None:
    """Every unit of time is in a gap if and only if no interval covers it; gaps are in order and apart."""
    found = waterfall.gaps(whole, covered)
    in_gap = {moment for left, right in found for moment in range(left, right)}
    expected = set(range(*whole)) - {moment for left, right in covered for moment in range(left, right)}
    assert in_gap == expected
    assert all(left[1] < right[0] for left, right in pairwise(found))


@given(intervals, intervals, st.integers(1, 120))
def test_a_line_is_as_wide_as_asked_and_never_empty(axis: tuple[int, int], bar: tuple[int, int], width: int) -> None:
    """However short an interval is, it leaves a mark, and nothing leaves the line."""
    line = waterfall.line([bar], axis, width, "#", "|")
    assert len(line) == width
    assert line.strip()


def test_bars_meet_where_intervals_meet() -> None:
    """Two stages that follow one another fill the axis without hole or overlap."""
    first = waterfall.line([(0, 60)], (0, 100), 10, "#", "|")
    second = waterfall.line([(60, 100)], (0, 100), 10, "#", "|")
    assert (first, second) == ("######    ", "      ####")


def test_a_short_interval_is_drawn_thin() -> None:
    """What fills less than half a column is a thin mark, and does not hide a full one."""
    assert waterfall.line([(0, 1), (50, 100)], (0, 100), 4, "#", "|") == "| ##"
    assert waterfall.line([(0, 50), (1, 2)], (0, 100), 4, "#", "|") == "##  "
