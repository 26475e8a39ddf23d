"""A worker that runs for days: memory of its probe stays constant, on a device that works and on one that does not."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from tailspan.device.cuda import CudaTimer
from tailspan.device.steps import StepProbe
from tailspan.recorder import engine as recorder
from tests.support.fake_device import FakeDevice

MS = 10**6
STEPS = 1_000_000
TRACED = 30_000
WARM_UP = 2_000
BYTES = 16 * 1024


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were recorded; what was is not kept."""
    count = [0]

    def step_device(*_: object) -> None:
        count[0] += 1

    monkeypatch.setattr(recorder, "step_device", step_device)
    return count


def run(probe: StepProbe, device: FakeDevice, steps: int) -> None:
    """Run steps of 8 ms, each seen a little after its end."""
    begin, launched, end = probe.begin, probe.launched, probe.end
    launch, advance = device.launch, device.advance
    for number in range(steps):
        begin("decode")
        launch(8 * MS)
        launched()
        end("engine", number)
        advance(8 * MS + 10_000)


def grown(work: Callable[[], None]) -> int:
    """Return the bytes that are allocated when the work is done and were not before."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    work()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def test_a_million_steps_take_no_more_memory_than_a_thousand(written: list[int]) -> None:
    """10^6 steps of over two hours of the device: constant memory, three or four events, none lost."""
    device = FakeDevice(drift_ppm=150)
    timer = CudaTimer(device, 0, "cuda", now=device.now)
    probe = StepProbe(timer, now=device.now)
    run(probe, device, WARM_UP)
    gc.collect()
    blocks = sys.getallocatedblocks()
    assert grown(lambda: run(probe, device, TRACED)) < BYTES
    run(probe, device, STEPS - TRACED)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500
    probe.poll()
    assert written[0] == STEPS + WARM_UP
    assert probe.untimed == 0
    assert device.created <= 4
    assert not device.synchronized


def test_a_hung_device_takes_a_bounded_amount_of_memory(written: list[int]) -> None:
    """Thirty thousand steps that are never passed fill the pool once and then cost nothing."""
    device = FakeDevice()
    timer = CudaTimer(device, 0, "cuda", now=device.now, capacity=256)
    probe = StepProbe(timer, now=device.now)
    device.current_stream().hang()
    run(probe, device, WARM_UP)
    assert grown(lambda: run(probe, device, 30_000)) < BYTES
    assert device.live == 256
    assert written[0] == 0
    assert probe.untimed == 30_000 + WARM_UP - len(probe._pending)


def test_a_device_that_fails_again_and_again_leaves_nothing_behind(written: list[int]) -> None:
    """A thousand resets, each with steps under way: no event and no memory stays."""
    device = FakeDevice()
    timer = CudaTimer(device, 0, "cuda", now=device.now)
    probe = StepProbe(timer, now=device.now)

    def fail_often(times: int) -> None:
        for _ in range(times):
            run(probe, device, 5)
            device.fail()
            probe.begin("decode")
            probe.end("engine", 0)
            device.recover()
            assert timer.restart()

    fail_often(50)
    assert grown(lambda: fail_often(1000)) < BYTES
    assert device.live == 0
    assert timer.failures == 1050


def test_a_fork_after_use_leaves_the_parent_timing_and_the_child_without(written: list[int]) -> None:
    """A child that goes on with the engine's code records nothing and does not touch the device; the parent does."""
    device = FakeDevice()
    probe = StepProbe(CudaTimer(device, 0, "cuda", now=device.now), now=device.now)
    run(probe, device, 100)
    before = written[0]
    child = os.fork()
    if child == 0:
        probe._pending._timer.record()
        for number in range(100):
            probe.begin("decode")
            probe.launched()
            probe.end("engine", number)
            probe.poll()
        del probe
        gc.collect()
        os._exit(1 if device.touched_by_child or written[0] != before else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(probe, device, 100)
    probe.poll()
    assert written[0] == 200
