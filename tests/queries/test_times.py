"""Durations, times and windows as users write them."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan.errors import UserError
from tailspan_queries.times import (
    LONG_NS,
    NS_PER_HOUR,
    NS_PER_MINUTE,
    Window,
    iso,
    parse_moment,
    parse_window,
    sql_time,
)

NOW_NS = 1_795_953_600_123_456_789
SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("0s", 0),
        ("30s", 30),
        ("15m", 900),
        ("2h", 7200),
        ("1d", 86400),
        ("1w", 604800),
        ("1h30m", 5400),
        ("1.5h", 5400),
    ],
)
def test_a_duration_lies_that_long_before_now(text: str, ago_s: int) -> None:
    """A duration means that long ago, to the nanosecond."""
    assert parse_moment("--since", text, NOW_NS) == NOW_NS - ago_s * SECOND_NS


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-29T12:00:00Z",
        "2026-11-29T12:00",
        "2026-11-29 12:00:00",
        "2026-11-29T13:00+01:00",
        " 2026-11-29T12:00Z ",
    ],
)
def test_a_time_without_offset_is_utc(text: str) -> None:
    """ISO times are read with their offset; without one they are UTC."""
    assert parse_moment("--since", text, NOW_NS) == 1_795_953_600 * SECOND_NS


def test_a_date_is_its_midnight_utc_and_now_is_now() -> None:
    """A date alone begins the day, and `now` is the moment given, by default that of the clock."""
    assert parse_moment("--since", "2026-11-29", NOW_NS) == 1_795_910_400 * SECOND_NS
    assert parse_moment("--until", "now", NOW_NS) == NOW_NS
    before = time.time_ns()
    assert before <= parse_window("1h", "now").until_ns <= time.time_ns()


@pytest.mark.parametrize(
    "text", ["", "xx", "15", "15 m", "-5m", "m", "2026-13-01", "yesterday", "1y", "99999w", "9999-01-01"]
)
def test_a_wrong_value_is_one_clear_error(text: str) -> None:
    """What cannot be read is an error that names option, value and what is allowed."""
    with pytest.raises(UserError) as caught:
        parse_moment("--since", text, NOW_NS)
    assert f"--since {text!r}" in caught.value.what
    assert "15m" in caught.value.remedy


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    """An empty window is an error, not an empty report."""
    with pytest.raises(UserError, match="--since 1m is not before --until 1h"):
        parse_window("1m", "1h")
    with pytest.raises(UserError):
        parse_window("now", "now", NOW_NS)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2261, 12, 31)), st.integers(0, 999))
def test_times_survive_their_text(moment: datetime, nanoseconds: int) -> None:
    """ISO text parses back to the same microsecond, and both texts keep every nanosecond."""
    exact = parse_moment("--since", moment.isoformat(), NOW_NS)
    assert datetime.fromtimestamp(exact // SECOND_NS, UTC).replace(tzinfo=None) == moment.replace(microsecond=0)
    assert parse_moment("--since", iso(exact), NOW_NS) == exact
    text = sql_time(exact + nanoseconds)
    assert text.endswith(f"{(exact + nanoseconds) % SECOND_NS:09d}")
    assert text[:10] == moment.date().isoformat()


@given(st.integers(0, 2**62), st.integers(1, 10**15))
def test_whole_minutes_hold_the_window(since_ns: int, length_ns: int) -> None:
    """The widened window holds the asked one, has whole minutes and is less than two minutes longer."""
    window = Window(since_ns, since_ns + length_ns)
    wide = window.whole_minutes
    assert wide.since_ns % NS_PER_MINUTE == wide.until_ns % NS_PER_MINUTE == 0
    assert wide.since_ns <= window.since_ns < window.until_ns <= wide.until_ns
    assert (wide.until_ns - wide.since_ns) - length_ns < 2 * NS_PER_MINUTE
    assert wide.whole_minutes == wide


@given(st.integers(2 * LONG_NS, 2**62), st.integers(1, 10**15), st.booleans())
def test_rollups_answer_long_relative_windows_by_whole_hours(until_ns: int, length_ns: int, relative: bool) -> None:
    """Only a window that is long and relative to now grows to whole hours; any other to whole minutes."""
    window = Window(max(until_ns - length_ns, 0), until_ns, relative)
    unit_ns = NS_PER_HOUR if relative and until_ns - window.since_ns >= LONG_NS else NS_PER_MINUTE
    wide = window.for_rollup
    assert wide.since_ns % unit_ns == wide.until_ns % unit_ns == 0
    assert 0 <= window.since_ns - wide.since_ns < unit_ns
    assert 0 <= wide.until_ns - window.until_ns < unit_ns
    assert wide.for_rollup == wide


@pytest.mark.parametrize(
    ("since", "until", "relative"),
    [
        ("24h", "now", True),
        (" 1d12h ", "2h", True),
        ("2026-11-28T12:30Z", "now", False),
        ("2026-11-28T12:30Z", "2026-11-28T13:00Z", False),
    ],
)
def test_a_time_that_was_written_out_is_kept_to_the_minute(since: str, until: str, relative: bool) -> None:
    """A window is relative if both of its ends are durations or now."""
    assert parse_window(since, until, NOW_NS).relative is relative
