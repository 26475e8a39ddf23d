"""Which request is tried next, how fast, and when one is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan_collector.forward.pace import LONGEST_PAUSE_S, LONGEST_PAUSE_UNCLEAR_S, Pace, pause_s
from tailspan_collector.forward.window import MOST_OVERTAKEN, MOST_OVERTAKEN_CLEAR, Item, Window


def window_of(count: int) -> Window:
    """Return a window of requests that are told apart by their payload."""
    return Window(Item(str(number).encode(), number) for number in range(count))


def take(window: Window, now: float) -> Item:
    """Return the next request, which there must be."""
    item = window.next(now)
    assert item is not None
    return item


@given(st.integers(0, 12), st.lists(st.sampled_from(["take", "fail", "refuse", "old", "time"]), max_size=150))
def test_every_request_ends_exactly_once(count: int, happenings: list[str]) -> None:
    """Whatever happens, each request is under way, waits, or has ended once; then the window is done, not before."""
    window, now, sending, ended = window_of(count), 0.0, list[Item](), list[Item]()
    for happening in happenings:
        if happening == "time":
            now += 20
        elif happening == "old":
            ended += window.take_older(len(happenings) % 5)
        elif (item := window.next(now)) is not None:
            sending.append(item)
        if sending and happening in ("take", "refuse"):
            (window.taken if happening == "take" else window.given_up)(sending[0])
            ended.append(sending.pop(0))
        elif sending and happening == "fail":
            failed = sending.pop(0)
            if window.failed(failed, now, is_clear=False):
                ended.append(failed)
        assert len({id(item) for item in ended}) == len(ended)
        assert all(item.is_done for item in ended)
        assert window.is_done == (len(ended) == count)
        assert all(item.is_done for item in window.items[: window.done_prefix])
        assert window.done_prefix == count or not window.items[window.done_prefix].is_done


@pytest.mark.parametrize(("is_clear", "most"), [(False, MOST_OVERTAKEN), (True, MOST_OVERTAKEN_CLEAR)])
def test_a_request_is_given_up_once_others_got_through_often_enough(is_clear: bool, most: int) -> None:
    """A request that fails while others are taken is its own problem: soon if the answer is unclear, late if clear."""
    window, now = window_of(1), 0.0
    bad = take(window, now)
    assert not window.failed(bad, now, is_clear)
    for number in range(1, most + 1):
        assert window.is_stuck
        window.extend([Item(b"good")])
        window.taken(take(window, now))
        now = bad.due
        assert take(window, now) is bad
        assert window.failed(bad, now, is_clear) == (number == most)
    assert window.is_done


def test_a_request_is_never_given_up_while_nothing_gets_through() -> None:
    """A destination that answers 500 to everything is ill itself: all requests wait for it."""
    window, now = window_of(3), 0.0
    for _ in range(1000):
        now += 60
        assert not window.failed(take(window, now), now, is_clear=False)
    assert window.is_stuck


def test_tries_go_round() -> None:
    """After failures other requests are tried before the same one again, the longest waiting first."""
    window = window_of(3)
    for _ in range(3):
        window.failed(take(window, 0.0), 0.0, is_clear=True)
    assert window.next(0.0) is None
    due = sorted(window.items, key=lambda item: item.due)
    assert [take(window, 100.0) for _ in range(3)] == due


@pytest.mark.parametrize(("is_clear", "longest_s"), [(True, LONGEST_PAUSE_S), (False, LONGEST_PAUSE_UNCLEAR_S)])
def test_pace_slows_down_and_recovers(is_clear: bool, longest_s: float) -> None:
    """Failures double the pause up to a limit and leave one try at a time; a success brings full speed back."""
    pace, now = Pace(), 100.0
    assert pace.may_start(now, in_flight=3)
    for _ in range(20):
        pace.failed(now, now, is_clear=is_clear)
        now = max(now, pace.not_before)
        assert pace.may_start(now, 0)
        assert not pace.may_start(now, 1)
        last = pace.not_before
    pace.failed(now, now, is_clear=is_clear)
    assert longest_s / 2 <= pace.not_before - last <= longest_s
    pace.succeeded()
    assert pace.may_start(now, in_flight=3)


def test_one_bad_request_does_not_slow_the_others_down() -> None:
    """After a single failure the next request is tried at once, and when it is taken nothing has been lost."""
    pace = Pace()
    pace.failed(started=1.0, now=2.0, is_clear=False)
    assert pace.may_start(2.0, 0)
    assert not pace.may_start(2.0, 1)


def test_tries_that_fail_together_count_once() -> None:
    """Four tries that were under way when the destination went down are one failure, not four."""
    pace = Pace()
    for _ in range(4):
        pace.failed(started=10.0, now=11.0, is_clear=True)
    assert pace.failures == 1


def test_a_destination_that_names_a_time_is_left_alone_until_then() -> None:
    """RetryInfo and Retry-After hold all tries, and a little longer, so that senders do not come in step."""
    pace = Pace()
    pace.failed(started=0.0, now=0.0, is_clear=True, retry_after_s=100.0)
    assert 100 <= pace.not_before <= 110


@given(st.integers(1, 10_000))
def test_pauses_have_jitter_within_bounds(failures: int) -> None:
    """A pause lies in the upper half of its range, whatever the count."""
    longest = min(LONGEST_PAUSE_S, 0.5 * 2.0 ** min(failures - 1, 20))
    assert longest / 2 <= pause_s(failures) <= longest
