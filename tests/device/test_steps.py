"""A step probe: planted busy times, gaps and launches come out, for the right step, whatever the device does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailspan import attributes as attr
from tailspan.device.host import HostTimer
from tailspan.device.steps import MAX_PENDING, MAX_REFUSED, StepProbe
from tests.device.bench import MS, TICKS, Bench, numbers
from tests.device.conftest import Recorded
from tests.support.fake_device import FakeDevice

CUDA, CPU = attr.DEVICES.index("cuda"), attr.DEVICES.index("cpu")


def test_busy_idle_launch_and_begin_are_what_was_planted(device: FakeDevice, recorded: Recorded) -> None:
    """Each step has its kernels' time, the gap before it, the host's launch time, and a begin within what is stated."""
    bench = Bench(device)
    begins = []
    for number in range(1, 21):
        begins.append(device.host_ns + 5_000)
        bench.step(number, kernel_ns=number * MS, gap_ns=2 * number * MS, launch_ns=MS // 2)
    assert numbers(recorded) == list(range(1, 21))
    for number, (engine, _, kind, busy_ns, idle_ns, begin_ns, uncertainty_ns, launch_ns) in enumerate(
        recorded.steps, 1
    ):
        assert (engine, kind, launch_ns) == ("engine", CUDA, MS // 2)
        assert busy_ns == pytest.approx(number * MS, abs=TICKS)
        gap_ns = 2 * (number - 1) * MS + device.visible_ns + 5_000
        assert idle_ns == (-1 if number == 1 else pytest.approx(gap_ns, abs=TICKS))
        assert abs(begin_ns - begins[number - 1]) <= uncertainty_ns < 10_000
    assert bench.probe.untimed == 0


def test_steps_that_are_launched_ahead_have_no_gap(device: FakeDevice, recorded: Recorded) -> None:
    """An engine that runs one step ahead keeps the device busy: its steps follow each other without a gap."""
    bench = Bench(device)
    bench.launch(1)
    for number in range(2, 50):
        bench.launch(number)
        device.advance(7 * MS)
    bench.pass_all()
    assert numbers(recorded) == list(range(1, 50))
    assert [step[4] for step in recorded.steps[1:]] == [0] * 48
    assert all(step[3] == pytest.approx(8 * MS, abs=TICKS) for step in recorded.steps)


def test_a_step_behind_a_long_kernel_does_not_wait(recorded: Recorded) -> None:
    """With an hour of work before it a step is launched and polled at once, and recorded once it is done."""
    device = FakeDevice()
    bench = Bench(device)
    device.launch(3_600 * 10**9)
    before_ns = device.host_ns
    bench.launch(1, launch_ns=0)
    bench.probe.poll()
    assert device.host_ns == before_ns
    assert recorded.steps == []
    bench.pass_all()
    assert numbers(recorded) == [1]
    assert recorded.steps[0][3] == pytest.approx(8 * MS, abs=TICKS)
    assert not device.synchronized


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(late=st.lists(st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS)), min_size=40, max_size=40))
def test_completion_in_any_order_does_not_mix_steps(recorded: Recorded, late: list[tuple[int, int]]) -> None:
    """Events that are seen to be done in any order give each step its own end minus its own begin, in order.

    An end that comes before its begin is no time, and left out.
    """
    recorded.steps.clear()
    device = FakeDevice()
    delays = iter([delay for pair in late for delay in pair])
    device.scatter = lambda: next(delays)
    bench = Bench(device)
    for number in range(1, 41):
        bench.launch(number)
        device.advance(9 * MS)
    device.advance(100 * MS)
    bench.probe.poll()
    busy = {number: 8 * MS + end - begin for number, (begin, end) in enumerate(late, 1)}
    assert numbers(recorded) == sorted(numbers(recorded))
    assert {number for number, ns in busy.items() if ns > TICKS} <= set(numbers(recorded))
    for step in recorded.steps:
        assert step[3] == pytest.approx(busy[step[1]], abs=TICKS)
    assert len(recorded.steps) + bench.probe.untimed == 40


def test_a_step_that_is_never_passed_does_not_block_the_others(device: FakeDevice, recorded: Recorded) -> None:
    """After enough newer steps it is dropped and counted, all others are recorded, and the gap after it is unknown."""
    bench = Bench(device)
    bench.step(1)
    device.scatter = lambda: float("inf")
    bench.launch(2)
    device.scatter = None
    for number in range(3, 3 + MAX_PENDING + 10):
        bench.step(number)
    assert numbers(recorded) == [1, *range(3, 3 + MAX_PENDING + 10)]
    assert recorded.steps[1][4] == -1
    assert recorded.steps[2][4] > 0
    assert bench.probe.untimed == 1


def test_a_device_that_never_gets_any_further_holds_a_bounded_number_of_events(
    device: FakeDevice, recorded: Recorded
) -> None:
    """Ten thousand steps on a hung stream: events and steps are bounded, what is left out is counted."""
    bench = Bench(device, capacity=500)
    device.current_stream().hang()
    for number in range(10_000):
        bench.launch(number)
    assert recorded.steps == []
    assert device.live <= 500
    assert len(bench.probe._pending) <= MAX_PENDING
    assert bench.timer.skipped > 0
    assert bench.probe.untimed + len(bench.probe._pending) == 10_000


def test_an_exhausted_pool_costs_steps_and_not_the_engine(device: FakeDevice, recorded: Recorded) -> None:
    """With events for three steps the fourth under way is left out, and the gap after it is unknown."""
    bench = Bench(device, capacity=6)
    for number in range(1, 5):
        bench.launch(number)
    bench.pass_all()
    bench.step(5)
    bench.step(6)
    assert numbers(recorded) == [1, 2, 3, 5, 6]
    assert [step[4] < 0 for step in recorded.steps] == [True, False, False, True, False]
    assert bench.probe.untimed == 1
    assert bench.timer.skipped == 1


def test_a_step_that_raised_is_left_out(device: FakeDevice, recorded: Recorded) -> None:
    """An abandoned step, or one that never ended, leaves no record and no mark behind."""
    bench = Bench(device)
    bench.step(1)
    bench.probe.begin("prefill")
    bench.probe.abandon()
    bench.probe.abandon()
    bench.probe.begin("decode")
    bench.step(2)
    bench.step(3)
    bench.probe.end("engine", 4)
    assert numbers(recorded) == [1, 2, 3]
    assert [step[4] < 0 for step in recorded.steps] == [True, True, False]
    assert bench.probe.untimed == 2
    assert bench.timer.outstanding == 1


def test_steps_in_two_streams_are_refused_and_a_new_stream_is_followed(device: FakeDevice, recorded: Recorded) -> None:
    """A step in another stream is left out; an engine that stays there is timed again, with no gap guessed."""
    bench = Bench(device)
    bench.step(1)
    with device.stream(device.Stream()):
        bench.step(2)
    bench.step(3)
    assert numbers(recorded) == [1, 3]
    assert recorded.steps[1][4] == -1
    with device.stream(device.Stream()):
        for number in range(4, 4 + MAX_REFUSED + 3):
            bench.step(number)
    assert numbers(recorded) == [1, 3, 12, 13, 14]
    assert [step[4] < 0 for step in recorded.steps[2:]] == [True, False, False]
    assert bench.probe.untimed == 1 + MAX_REFUSED


def test_a_step_that_changes_its_stream_is_left_out(device: FakeDevice, recorded: Recorded) -> None:
    """A begin in one stream and an end in another are no busy time."""
    bench = Bench(device)
    bench.probe.begin("decode")
    device.launch(8 * MS)
    with device.stream(device.Stream()):
        bench.probe.end("engine", 1)
    bench.step(2)
    assert numbers(recorded) == [2]
    assert bench.probe.untimed == 1


def test_a_capture_between_steps_does_not_disturb_them(device: FakeDevice, recorded: Recorded) -> None:
    """Steps during a capture are left out and steps before it are read after it."""
    bench = Bench(device)
    bench.launch(1)
    device.advance(20 * MS)
    with device.capture():
        bench.launch(2)
        bench.probe.poll()
        assert recorded.steps == []
    bench.step(3)
    assert numbers(recorded) == [1, 3]


def test_a_device_reset_is_survived(device: FakeDevice, recorded: Recorded) -> None:
    """Steps under way at the failure are left out, nothing is raised, and after a restart steps are timed again."""
    bench = Bench(device)
    bench.step(1)
    bench.launch(2)
    device.fail()
    for number in range(3, 6):
        bench.probe.begin("decode")
        bench.probe.launched()
        bench.probe.end("engine", number)
        bench.probe.poll()
    assert device.live == 0
    device.recover()
    assert bench.timer.restart()
    for number in range(6, 9):
        bench.step(number)
    assert numbers(recorded) == [1, 6, 7, 8]
    assert recorded.steps[1][4] == -1
    assert bench.probe.untimed == 4
    assert bench.probe.is_on


def test_a_cpu_has_no_launch(recorded: Recorded) -> None:
    """On the host's clock a step is recorded when it ends, exact, with the gap before it and no launch time."""
    ticks = iter(range(0, 10**9, 1000))

    class Timer(HostTimer):
        record = staticmethod(lambda: next(ticks))

    probe = StepProbe(Timer())
    for number in (1, 2):
        probe.begin("decode")
        probe.launched()
        probe.end("engine", number)
    assert recorded.steps == [("engine", 1, CPU, 1000, -1, 0, 0, -1), ("engine", 2, CPU, 1000, 1000, 2000, 0, -1)]
