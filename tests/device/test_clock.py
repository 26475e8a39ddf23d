"""A device's moments on the host's clock: the truth is within what is stated, and what is stated is tight."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailspan.device.clock import DRIFT_PPM, DeviceClock
from tailspan.device.cuda import CudaTimer
from tailspan.device.event_clock import RENEW_NS
from tailspan.device.timer import HostTime
from tests.support.fake_device import FakeDevice

US, MS, SECOND, MINUTE = 10**3, 10**6, 10**9, 60 * 10**9

drifts = st.floats(-200, 200)
wanders = st.lists(st.floats(-20, 20), min_size=1, max_size=5)
gaps = st.one_of(
    st.integers(1 * MS, 100 * MS), st.integers(1 * MS, 100 * MS), st.integers(SECOND, 40 * SECOND),
    st.integers(MINUTE, 20 * MINUTE),
)  # fmt: skip
waits = st.one_of(st.integers(0, 20 * US), st.integers(0, 20 * US), st.integers(0, 30 * MS), st.integers(0, 3 * SECOND))


class Event(NamedTuple):
    """A mark of a device: host time since the one before, how long before it was recorded, and seen after."""

    gap_ns: int
    early_ns: int
    late_ns: int


events = st.lists(st.builds(Event, gaps, waits, waits), min_size=1, max_size=60)


def is_within(moment: HostTime | None, truth_ns: float) -> bool:
    """Whether a stated time covers the truth."""
    assert moment is not None
    return abs(moment.at_ns - truth_ns) <= moment.uncertainty_ns


@settings(max_examples=300, deadline=None)
@given(drift=drifts, wander=wanders, events=events, offset_ns=st.integers(-(10**16), 10**16))
def test_the_truth_is_within_the_uncertainty(
    drift: float, wander: list[float], events: list[Event], offset_ns: int
) -> None:
    """Drifts of up to 200 ppm, rates that wander, late polls, queued marks, idle minutes: each moment is covered."""
    clock = DeviceClock()
    host_ns, device_ns = 10**15, 10**15 + offset_ns
    for number, event in enumerate(events):
        host_ns += event.gap_ns
        device_ns += round(event.gap_ns * (1 + (drift + wander[number % len(wander)]) / 1e6))
        moment = clock.anchor(device_ns, host_ns - event.early_ns, host_ns + event.late_ns, error_ns=1)
        assert is_within(moment, host_ns)
        assert moment.uncertainty_ns <= (event.early_ns + event.late_ns) / 2 + 4
        a_bit_ago = device_ns - min(event.gap_ns, 10 * MS)
        truth_ns = host_ns - min(event.gap_ns, 10 * MS) / (1 + drift / 1e6)
        assert is_within(clock.host_time(a_bit_ago, error_ns=500), truth_ns)
        slowest, fastest = clock.drift_ppm
        assert -DRIFT_PPM <= slowest <= fastest <= DRIFT_PPM
    assert clock.resets == 0


@settings(max_examples=100, deadline=None)
@given(drift=drifts, events=events, jitter=st.lists(st.integers(2 * US, 400 * US), min_size=1, max_size=7))
def test_events_that_tell_only_float_differences_are_placed(
    drift: float, events: list[Event], jitter: list[int]
) -> None:
    """Through rounded differences, ticks and renewals of the reference each mark is where the device passed it."""
    device = FakeDevice(drift_ppm=drift)
    latencies = iter(range(10**9))
    device.latency = lambda: jitter[next(latencies) % len(jitter)]
    timer = CudaTimer(device, 0, "cuda", now=device.now)
    for event in events:
        device.advance(event.gap_ns)
        begin = timer.record()
        device.launch(event.early_ns)
        end = timer.record()
        assert begin is not None
        assert end is not None
        while not timer.is_done(end):
            device.advance(max(MS, event.early_ns // 3))
        device.advance(event.late_ns)
        assert timer.is_done(begin)
        for mark in (end, begin):
            assert is_within(timer.host_time(mark), mark.event.passed_ns)
        timer.release([begin, end])
    assert timer._clock.clock.resets == 0


@settings(max_examples=60, deadline=None)
@given(drift=st.sampled_from([-299.9, 300]), gaps=st.lists(st.integers(1 * MS, 3 * SECOND), min_size=20, max_size=60))
def test_ticks_and_rounding_are_part_of_the_uncertainty(drift: float, gaps: list[int]) -> None:
    """With brackets of no width, at the bound of the drift, the stated rounding is all there is, and suffices."""
    device = FakeDevice(drift_ppm=drift, latency_ns=0)
    device.visible_ns = 0
    timer = CudaTimer(device, 0, "cuda", now=device.now)
    for gap_ns in gaps:
        device.advance(gap_ns)
        mark = timer.record()
        assert mark is not None
        assert is_within(timer.host_time(mark), mark.event.passed_ns)
        timer.release([mark])
    assert timer._clock.clock.resets == 0


@settings(max_examples=60, deadline=None)
@given(polls=st.lists(st.integers(100, 4 * US), min_size=1, max_size=5), visible_ns=st.integers(0, 5 * US))
def test_an_event_is_passed_before_the_host_can_see_it(polls: list[int], visible_ns: int) -> None:
    """Polls faster than the way from the device to the host do not push a mark past its true time."""
    device = FakeDevice(drift_ppm=200)
    device.visible_ns = visible_ns
    timer = CudaTimer(device, 0, "cuda", now=device.now)
    for number in range(20):
        device.launch(MS)
        mark = timer.record()
        assert mark is not None
        device.advance(MS)
        while not timer.is_done(mark):
            device.advance(polls[number % len(polls)])
        moment = timer.host_time(mark)
        assert is_within(moment, mark.event.passed_ns)
        assert moment is not None
        assert moment.uncertainty_ns < 10 * US
        timer.release([mark])


def test_a_host_that_waits_for_each_step_knows_to_within_twenty_microseconds() -> None:
    """Steps of 20 ms, each seen 20 us after its end, a drift of 200 ppm: +-20 us, also an hour later."""
    device = FakeDevice(drift_ppm=200)
    timer = CudaTimer(device, 0, "cuda", now=device.now)
    stated: list[int] = []
    for number in range(2000):
        begin = timer.record()
        device.launch(20 * MS)
        end = timer.record()
        assert begin is not None
        assert end is not None
        device.advance(20 * MS + 25 * US)
        assert timer.is_done(begin)
        assert timer.is_done(end)
        timer.host_time(end)
        moment = timer.host_time(begin)
        assert moment is not None
        assert is_within(moment, begin.event.passed_ns)
        stated.append(moment.uncertainty_ns)
        timer.release([begin, end])
        device.advance(2 * MINUTE if number % 100 == 99 else 3 * MS)
    assert max(stated) < 20 * US


def test_the_rate_is_learned() -> None:
    """Two tight anchors 20 s apart tell a rate of 150 ppm to within its wander, so 2 s without any cost 0.1 ms."""
    clock = DeviceClock()
    for second in range(21):
        device_ns = second * SECOND
        host_ns = 10**12 + round(device_ns * (1 + 150e-6))
        clock.anchor(device_ns, host_ns - 5 * US, host_ns + 5 * US)
    slowest, fastest = clock.drift_ppm
    assert slowest == pytest.approx(100, abs=2)
    assert fastest == pytest.approx(200, abs=2)
    later = clock.host_time(22 * SECOND)
    assert is_within(later, 10**12 + 22 * SECOND * (1 + 150e-6))
    assert later is not None
    assert later.uncertainty_ns < 120 * US


def test_a_learned_rate_is_not_trusted_after_half_a_minute() -> None:
    """An hour later the device may run at any rate again; the next anchor is believed."""
    clock = DeviceClock()
    for second in range(20):
        clock.anchor(second * SECOND, 10**12 + second * SECOND, 10**12 + second * SECOND + 10)
    host_ns = 10**12 + 3600 * SECOND + round(3580 * SECOND * 200e-6)
    moment = clock.anchor(3600 * SECOND, host_ns - US, host_ns + US)
    assert is_within(moment, host_ns)
    assert clock.drift_ppm == (-DRIFT_PPM, DRIFT_PPM)
    assert clock.resets == 0


def test_a_rate_is_not_counted_on_for_times_long_before_it_was_learned() -> None:
    """A rate that falls from 200 ppm to 0 within minutes, as slowly as stated, contradicts no anchor from before."""
    clock = DeviceClock()
    host_ns = 10**12
    clock.anchor(0, host_ns, host_ns)
    for second in range(1, 311):
        host_ns += SECOND + round(SECOND * 1e-6 * min(200, max(0, 0.8 * (300 - second))))
        late_ns = 0 if second >= 300 else SECOND
        assert is_within(clock.anchor(second * SECOND, host_ns - late_ns, host_ns + late_ns, error_ns=500), host_ns)
    assert clock.resets == 0
    assert clock.drift_ppm[1] < 100


def test_queued_work_does_not_loosen_a_side_that_is_known() -> None:
    """An anchor that is tight below and one that is tight above make one that is tight."""
    clock = DeviceClock()
    clock.anchor(0, 10**12 - 5 * US, 10**12 + 50 * MS)
    moment = clock.anchor(10 * MS, 10**12 - SECOND, 10**12 + 10 * MS + 5 * US)
    assert moment.uncertainty_ns < 10 * US
    assert is_within(clock.host_time(0), 10**12)


def test_a_clock_that_jumps_is_noticed_and_followed() -> None:
    """Anchors that contradict all before are believed, counted, and the clock is tight again at once."""
    clock = DeviceClock()
    for second in range(10):
        clock.anchor(second * SECOND, 10**12 + second * SECOND, 10**12 + second * SECOND + 10 * US)
    jumped_ns = 10**12 + 10 * SECOND + 50 * MS
    assert is_within(clock.anchor(10 * SECOND, jumped_ns - 5 * US, jumped_ns + 5 * US), jumped_ns)
    assert clock.resets == 1
    again = clock.anchor(11 * SECOND, jumped_ns + SECOND - 5 * US, jumped_ns + SECOND + 5 * US)
    assert is_within(again, jumped_ns + SECOND)
    assert again.uncertainty_ns < 10 * US


def test_without_an_anchor_nothing_is_known() -> None:
    """A clock that has seen nothing places nothing, nor does one that forgot."""
    clock = DeviceClock()
    assert clock.host_time(5) is None
    clock.anchor(0, 10, 20)
    clock.forget()
    assert clock.host_time(5) is None


def test_the_reference_is_renewed_before_floats_lose_microseconds() -> None:
    """After an hour of steps differences are still read over at most the renewal's distance, so to a microsecond."""
    device = FakeDevice()
    timer = CudaTimer(device, 0, "cuda", now=device.now)
    for _ in range(3600):
        device.advance(SECOND)
        mark = timer.record()
        assert mark is not None
        device.advance(10 * US)
        timer.host_time(mark)
        timer.release([mark])
    device.advance(SECOND)
    begin = timer.record()
    device.advance(10 * US)
    assert begin is not None
    moment = timer.host_time(begin)
    assert is_within(moment, begin.event.passed_ns)
    assert moment is not None
    assert moment.uncertainty_ns < 10 * US
    reference = timer._clock.reference
    assert reference is not None
    assert begin.recorded_ns - reference.recorded_ns <= RENEW_NS
    assert device.created <= 3
