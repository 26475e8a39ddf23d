"""Events of a device: a bounded pool that never waits, refuses to guess, and survives whatever the device does."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tailspan.device.cuda import CudaMark, CudaTimer
from tailspan.device.timer import UNKNOWN
from tests.support.fake_device import FakeDevice


def timer_of(device: FakeDevice, capacity: int = 4096) -> CudaTimer:
    """Return a timer on the device."""
    return CudaTimer(device, 0, "cuda", capacity, device.now)


def mark_of(timer: CudaTimer) -> CudaMark:
    """Record a mark that must not be refused."""
    mark = timer.record()
    assert mark is not None
    return mark


def test_elapsed_is_the_time_of_the_kernels_between_two_marks(device: FakeDevice) -> None:
    """Marks around a kernel of 3 ms are 3 ms apart, once the device has passed both, and not told before."""
    timer = timer_of(device)
    begin = mark_of(timer)
    device.launch(3_000_000)
    end = mark_of(timer)
    device.advance(100_000)
    assert timer.is_done(begin)
    assert not timer.is_done(end)
    assert timer.elapsed_ns(begin, end) == UNKNOWN
    assert timer.host_time(end) is None
    device.advance(3_000_000)
    assert timer.is_done(end)
    assert timer.elapsed_ns(begin, end) == pytest.approx(3_000_000, abs=1_000)


def test_nothing_waits_behind_a_long_kernel() -> None:
    """Behind a kernel of an hour every call returns at once, in real time."""
    device = FakeDevice(real_time=True)
    timer = CudaTimer(device, 0, "cuda")
    device.launch(3_600 * 10**9)
    began = time.monotonic()
    marks = [mark_of(timer) for _ in range(100)]
    assert not any(timer.is_done(mark) for mark in marks)
    assert timer.elapsed_ns(marks[0], marks[-1]) == UNKNOWN
    assert [timer.host_time(mark) for mark in marks] == [None] * 100
    timer.release(marks)
    assert time.monotonic() - began < 1
    assert not device.synchronized


def test_events_are_used_again(device: FakeDevice) -> None:
    """A thousand pairs that are given back need two events, and one that is the reference of the clock."""
    timer = timer_of(device)
    for _ in range(1000):
        marks = [mark_of(timer), mark_of(timer)]
        device.advance(10_000_000)
        assert timer.host_time(marks[1]) is not None
        assert timer.is_done(marks[0])
        timer.release(marks)
    assert device.created == 3
    assert timer.outstanding == 0


def test_an_exhausted_pool_skips_and_counts(device: FakeDevice) -> None:
    """With all events out there is no mark; with one given back there is."""
    timer = timer_of(device, capacity=4)
    marks = [mark_of(timer) for _ in range(4)]
    assert timer.record() is None
    assert timer.record() is None
    assert timer.skipped == 2
    device.advance(1_000_000)
    assert timer.is_done(marks[0])
    timer.release(marks[:1])
    assert timer.record() is marks[0]
    assert device.created == 4


def test_an_event_given_back_early_is_not_used_before_it_is_passed(device: FakeDevice) -> None:
    """The pool makes another event instead, and takes the early one once the device has passed it."""
    timer = timer_of(device, capacity=2)
    device.launch(10_000_000)
    early = mark_of(timer)
    timer.release([early])
    other = mark_of(timer)
    assert other is not early
    assert timer.record() is None
    device.advance(20_000_000)
    assert timer.record() is early


def test_events_that_are_never_passed_are_bounded_and_counted(device: FakeDevice) -> None:
    """On a stream that hangs the pool fills up once; everything after is skipped, and no event is made for it."""
    timer = timer_of(device, capacity=64)
    device.current_stream().hang()
    for _ in range(10_000):
        mark = timer.record()
        if mark is not None:
            timer.release([mark])
    assert timer.outstanding == device.live == 64
    assert timer.skipped == 10_000 - 64


def test_giving_back_twice_does_not_hand_an_event_out_twice(device: FakeDevice) -> None:
    """A mark that is not out any more is ignored, and cannot be read."""
    timer = timer_of(device)
    mark, other = mark_of(timer), mark_of(timer)
    device.advance(1_000_000)
    assert timer.is_done(mark)
    assert timer.is_done(other)
    timer.release([mark, mark])
    timer.release([mark])
    assert not timer.is_done(mark)
    assert timer.elapsed_ns(mark, other) == UNKNOWN
    assert mark_of(timer) is not mark_of(timer)


def test_a_reference_that_is_renewed_while_it_is_out_is_given_back_once(device: FakeDevice) -> None:
    """A mark that was the clock's reference returns to the pool when its holder gives it back, and only then."""
    timer = timer_of(device)
    first = mark_of(timer)
    device.advance(1_000_000)
    assert timer.host_time(first) is not None
    device.advance(5 * 10**9)
    second = mark_of(timer)
    device.advance(1_000_000)
    assert timer.host_time(second) is not None
    third = mark_of(timer)
    assert third is not first
    timer.release([first])
    assert mark_of(timer) is first
    assert mark_of(timer) is not first


def test_another_stream_is_refused_while_marks_are_out(device: FakeDevice) -> None:
    """A mark in a second stream is refused and counted; the first stream goes on."""
    timer = timer_of(device)
    begin = mark_of(timer)
    with device.stream(device.Stream()):
        assert timer.record() is None
    assert timer.refused == 1
    device.advance(1_000_000)
    assert timer.is_done(begin)
    assert timer.record() is not None


def test_a_new_stream_is_followed_when_no_mark_is_out(device: FakeDevice) -> None:
    """With everything given back, and passed, the timer follows the new stream and refuses the old one."""
    timer = timer_of(device)
    device.launch(5_000_000)
    early = mark_of(timer)
    timer.release([early])
    with device.stream(device.Stream()):
        assert timer.record() is None
        device.advance(10_000_000)
        assert timer.record() is not None
    assert timer.record() is None
    assert timer.refused == 2


def test_a_capture_has_no_marks_and_asks_for_none(device: FakeDevice) -> None:
    """While a graph is captured nothing is recorded and no event is asked for; afterwards it goes on."""
    timer = timer_of(device)
    before = mark_of(timer)
    device.advance(1_000_000)
    with device.capture():
        assert timer.record() is None
        assert not timer.is_done(before)
        assert timer.elapsed_ns(before, before) == UNKNOWN
    assert timer.captured == 1
    assert timer.is_done(before)


@pytest.mark.parametrize("call", ["record", "is_done", "elapsed_ns", "host_time"])
def test_a_device_that_fails_breaks_the_timer_and_nothing_else(device: FakeDevice, call: str) -> None:
    """Whichever call meets the failure returns nothing; so do all others from then on, and the events are dropped."""
    timer = timer_of(device)
    done, also, pending = mark_of(timer), mark_of(timer), mark_of(timer)
    device.advance(1_000_000)
    assert timer.is_done(done)
    assert timer.is_done(also)
    timer.host_time(done)
    device.fail()
    calls: dict[str, Any] = {
        "record": timer.record,
        "is_done": lambda: timer.is_done(pending),
        "elapsed_ns": lambda: timer.elapsed_ns(done, also),
        "host_time": lambda: timer.host_time(also),
    }
    assert calls[call]() in (None, False, UNKNOWN)
    assert timer.broken
    assert timer.failures == 1
    assert timer.epoch == 1
    assert timer.record() is None
    assert not timer.is_done(done)
    assert timer.elapsed_ns(done, also) == UNKNOWN
    assert timer.host_time(done) is None
    timer.release([done, also, pending])
    assert timer.outstanding == 0
    assert device.live == 0
    assert timer.failures == 1


def test_a_timer_starts_anew_after_a_reset(device: FakeDevice) -> None:
    """After `restart` marks work again; those from before the reset stay worthless and are not taken back."""
    timer = timer_of(device)
    old = mark_of(timer)
    device.fail()
    assert timer.record() is None
    device.recover()
    assert timer.record() is None
    assert timer.restart()
    new = mark_of(timer)
    device.advance(1_000_000)
    timer.release([old])
    assert not timer.is_done(old)
    assert timer.elapsed_ns(old, new) == UNKNOWN
    assert timer.host_time(new) is not None
    assert timer.outstanding == 1


def test_errors_that_are_not_the_devices_are_not_hidden(device: FakeDevice) -> None:
    """Only errors of the device break a timer: a defect is told to the guard around the hook."""
    timer = timer_of(device)
    device.current_stream = None  # type: ignore[assignment,method-assign]
    timer._current_stream = device.current_stream
    with pytest.raises(TypeError):
        timer.record()


def test_a_forked_child_does_not_touch_the_device(device: FakeDevice) -> None:
    """In the child the timer gives nothing and cannot be restarted; the parent's goes on."""
    timer = timer_of(device)
    mark, spare = mark_of(timer), mark_of(timer)
    device.advance(1_000_000)
    assert timer.is_done(mark)
    timer.release([spare])
    child = os.fork()
    if child == 0:
        inert = (
            timer.forked
            and timer.record() is None
            and not timer.is_done(mark)
            and timer.elapsed_ns(mark, mark) == UNKNOWN
            and timer.host_time(mark) is None
            and not timer.restart()
        )
        timer.release([mark])
        del timer, mark, spare
        os._exit(0 if inert and not device.touched_by_child else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert timer.elapsed_ns(mark, mark) == 0
    assert timer.record() is not None


def test_a_timer_that_is_gone_leaves_no_events(device: FakeDevice) -> None:
    """Events live as long as their timer."""
    timer = timer_of(device)
    marks = [mark_of(timer) for _ in range(100)]
    assert device.live == 100
    del timer, marks
    assert device.live == 0
