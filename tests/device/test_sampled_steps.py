"""A step whose layers are sampled: its parts come with it, and a sampler's defects reach nobody."""

from __future__ import annotations

import pytest

from tailspan.device.cuda import CudaTimer
from tailspan.device.steps import MAX_ERRORS
from tailspan.device.timer import DeviceTimer, Mark
from tests.device.bench import MS, TICKS, Bench, EveryOther, Parts, numbers, sampled_step
from tests.device.conftest import Recorded
from tests.support.fake_device import FakeDevice


def test_a_sampled_step_has_its_parts_before_its_time(device: FakeDevice, recorded: Recorded) -> None:
    """Parts are recorded in front of their step, add up to it, and all marks go back; others have none."""
    sampler = EveryOther()
    bench = Bench(device, sampler)
    assert [sampled_step(bench, sampler, number, "prefill") for number in (1, 2)] == [True, False]
    bench.pass_all()
    assert recorded.order == ["layers", "device", "device"]
    [(engine, number, parts, times, steps, cost_ns, graph, prefill)] = recorded.layers
    assert (engine, number, parts, steps, cost_ns, graph, prefill) == (
        "engine", 1, "embedding|0-0:mlp|sampler", 7, 1234, True, False,
    )  # fmt: skip
    assert times == pytest.approx([1 * MS, 2 * MS, 3 * MS], abs=TICKS)
    assert sum(times) == recorded.steps[0][3]
    assert sampler.began == ["prefill", "prefill"]
    assert [phase for phase, _ in sampler.walls] == ["prefill", "prefill"]
    assert all(wall == MS for _, wall in sampler.walls)
    assert sampler.ended == 1
    assert bench.timer.outstanding == 1


def test_a_sampled_step_waits_for_all_its_marks(device: FakeDevice, recorded: Recorded) -> None:
    """A part's mark that is late delays its step."""
    sampler = EveryOther()
    bench = Bench(device, sampler)
    sampled_step(bench, sampler, 1)
    assert sampler.sample is not None
    late = sampler.sample.marks[0]
    late.event.hold()
    bench.pass_all()
    assert recorded.order == []
    late.event.let_go()
    device.advance(device.visible_ns)
    bench.probe.poll()
    assert recorded.order == ["layers", "device"]


def test_an_abandoned_sample_gives_its_marks_back(device: FakeDevice, recorded: Recorded) -> None:
    """A sampled step that raised is told to stop recording, and leaves nothing behind."""
    sampler = EveryOther()
    bench = Bench(device, sampler)
    assert bench.probe.begin("decode")
    sampler.mark()
    bench.probe.abandon()
    device.advance(MS)
    assert sampler.ended == 1
    assert bench.timer._held == 0


def test_a_step_without_marks_is_not_sampled(device: FakeDevice, recorded: Recorded) -> None:
    """Where the timer gives no begin the sampler is stopped at once, and asked again after the next timed step."""
    sampler = EveryOther()
    bench = Bench(device, sampler)
    bench.launch(1)
    bench.launch(2)
    with device.stream(device.Stream()):
        assert not sampled_step(bench, sampler, 3)
        assert sampler.ended == 2
        assert not sampled_step(bench, sampler, 4)
    bench.pass_all()
    assert numbers(recorded) == [1, 2]
    assert sampler.began == ["decode"] * 3
    assert len(sampler.walls) == 4


def test_a_sample_that_cannot_be_told_costs_only_the_layers(device: FakeDevice, recorded: Recorded) -> None:
    """A sample without times leaves the step's own time."""
    sampler = EveryOther()
    bench = Bench(device, sampler)
    sampled_step(bench, sampler, 1)
    assert sampler.sample is not None
    sampler.sample.times = lambda *_: []  # type: ignore[assignment,method-assign]
    bench.pass_all()
    assert recorded.order == ["device"]


def test_a_device_that_fails_while_a_step_is_read_costs_that_step(device: FakeDevice, recorded: Recorded) -> None:
    """Times that were read before the failure do not make half a record."""
    sampler = EveryOther()
    bench = Bench(device, sampler)
    sampled_step(bench, sampler, 1)
    sample = sampler.sample
    assert sample is not None

    def fail(timer: DeviceTimer, begin: Mark, end: Mark) -> list[float]:
        device.fail()
        return [float(timer.elapsed_ns(begin, mark)) for mark in sample.marks]

    sample.times = fail  # type: ignore[method-assign]
    bench.pass_all()
    assert bench.timer.broken
    assert recorded.order == []
    assert bench.probe.untimed == 1


def test_a_defect_in_a_sampled_step_stops_the_sampler(
    monkeypatch: pytest.MonkeyPatch, device: FakeDevice, recorded: Recorded
) -> None:
    """When the step's end cannot be recorded the sampler is told to stop, and no mark stays out."""
    monkeypatch.delenv("TAILSPAN_STRICT")
    sampler = EveryOther()
    bench = Bench(device, sampler)
    bench.step(0)
    sampler.began.clear()
    assert bench.probe.begin("decode")
    sampler.mark()
    with monkeypatch.context() as broken:
        broken.setattr(CudaTimer, "record", lambda _: 1 // 0)
        bench.probe.end("engine", 1)
    assert sampler.ended == 2
    assert bench.timer._held == 0


@pytest.mark.parametrize("method", ["begin", "end", "stepped", "times"])
def test_an_error_in_a_hook_never_reaches_the_engine(
    monkeypatch: pytest.MonkeyPatch, device: FakeDevice, recorded: Recorded, method: str
) -> None:
    """Whatever the sampler raises, the engine sees nothing; the probe goes on, or is off after a few errors."""
    monkeypatch.delenv("TAILSPAN_STRICT")

    def fail(*_: object) -> None:
        raise ValueError(method)

    sampler = EveryOther()
    bench = Bench(device, sampler)
    with monkeypatch.context() as broken:
        broken.setattr(Parts if method == "times" else EveryOther, method, fail)
        sampled_step(bench, sampler, 1)
        bench.pass_all()
    assert bench.probe.is_on
    assert bench.timer.outstanding <= 4
    for number in range(2, 6):
        sampled_step(bench, sampler, number)
        bench.pass_all()
    assert numbers(recorded) == [2, 3, 4, 5]
    assert all(step[3] == pytest.approx(6 * MS, abs=TICKS) for step in recorded.steps)
    monkeypatch.setattr(EveryOther, "begin", fail)
    for number in range(6, 6 + 2 * MAX_ERRORS):
        sampled_step(bench, sampler, number)
    assert not bench.probe.is_on
    assert not bench.probe.begin("decode")
    kept_by_sampler = 2 if method == "end" else 0
    assert bench.timer._held == kept_by_sampler


def test_an_error_in_a_hook_is_raised_in_tests(device: FakeDevice) -> None:
    """With TAILSPAN_STRICT=1 the error is shown."""
    sampler = EveryOther()
    sampler.began = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        Bench(device, sampler).probe.begin("decode")
