"""Numbers for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan_queries import units


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, units.ABSENT),
        (float("nan"), units.ABSENT),
        (0, "0"),
        (7, "7.00 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (35_120, "35.1 µs"),
        (812_000_000, "812 ms"),
        (999_700_000, "1.00 s"),
        (4_123_000_000, "4.12 s"),
        (125e9, "125 s"),
        (36_000e9, "10.0 h"),
        (-2_000_000, "-2.00 ms"),
    ],
)
def test_durations_have_three_digits_and_the_unit_that_fits(nanoseconds: float | None, text: str) -> None:
    """A duration is shown with three significant digits in the unit that keeps it below a thousand."""
    assert units.duration(nanoseconds).replace("\u202f", " ") == text


@given(st.floats(1, 1e16))
def test_a_duration_reads_back_within_half_a_percent(nanoseconds: float) -> None:
    """What is printed is the value to three digits, and never wider than a column of eight."""
    number, unit = units.duration(nanoseconds).split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "h": 3.6e12}[unit]
    assert float(number) * scale == pytest.approx(nanoseconds, rel=0.00501)
    assert len(number) + 1 + len(unit) <= 8


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, units.ABSENT),
        (0, "0.0%"),
        (0.0001, "<0.1%"),
        (0.714, "71.4%"),
        (1, "100.0%"),
        (-0.0001, "-<0.1%"),
        (-0.05, "-5.0%"),
    ],
)
def test_a_share_that_is_not_zero_never_reads_as_zero(ratio: float | None, text: str) -> None:
    """Small shares are shown as less than the smallest step."""
    assert units.percent(ratio) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (9_999, "9,999"), (12_345, "12.3 k"), (3_200_000, "3.20 M")])
def test_counts_stay_short(number: int, text: str) -> None:
    """Counts get a unit before they outgrow their column."""
    assert units.count(number) == text


@given(st.floats(-1, 2), st.integers(1, 60))
def test_a_bar_fits_its_width(ratio: float, width: int) -> None:
    """A bar is never wider than its column, and full exactly at one."""
    bar = units.bar(ratio, width)
    assert len(bar) <= width
    assert (bar == units.FULL * width) == (ratio > 1 - 1 / (16 * width)) or abs(ratio - 1 + 1 / (16 * width)) < 1e-9
