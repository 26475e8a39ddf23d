"""Layer times inside a CUDA graph, on a fake of its events: a model is captured, and replays record its events anew."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch

from tailspan.device.cuda import CudaTimer
from tailspan.errors import UserError
from tailspan.layers import graphs
from tailspan.layers.governor import Governor
from tailspan.layers.graphs import GraphLayers
from tailspan.layers.parts import OUTSIDE, Part
from tailspan.layers.plan import Plan
from tailspan.layers.sampler import DECODE, LayerSampler, Sample
from tests.layers.architectures import ARCHITECTURES, tokens
from tests.layers.test_plan import planned
from tests.layers.test_sampler import methods
from tests.support.fake_device import ERROR
from tests.support.fake_graphs import FakeGraph, GraphDevice

MS = 10**6
PART_NS = {"embedding": 100_000, "norm": 20_000, "attention": 500_000, "mlp": 700_000, "lm_head": 1_500_000}


def launches(plan: Plan, device: GraphDevice) -> None:
    """Make each part of a model launch one kernel on the device."""
    for site in plan.sites:
        duration_ns = PART_NS.get(plan.parts[site.part].kind)
        if duration_ns is not None:
            _launches(site.owner, device, duration_ns)


def _launches(module: Any, device: GraphDevice, duration_ns: int) -> None:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        device.launch(duration_ns)
        return original(*args, **kwargs)

    module.forward = forward


class Captured:
    """A Llama that was captured, on a device whose clock is exact."""

    def __init__(self) -> None:
        self.device = GraphDevice()
        self.device.tick_ns = 1
        self.model = ARCHITECTURES["llama"]()
        self.plan = planned(self.model)
        launches(self.plan, self.device)
        before = methods(self.plan)
        self.graph, self.layers = self.capture()
        assert methods(self.plan) == before

    def capture(self) -> tuple[FakeGraph, GraphLayers]:
        """Capture the model."""
        graph, layers = self.device.CUDAGraph(), GraphLayers(self.plan, self.device)
        with torch.no_grad(), layers.capture(self.device.graph(graph)):
            self.model(tokens())
        return graph, layers

    def replayed(self) -> dict[Part, float]:
        """Return the times of a replay."""
        replay = self.layers.replay(self.graph)
        self.device.catch_up()
        times = self.layers.read(replay)
        assert times is not None
        return dict(zip(self.plan.parts, times, strict=True))


@pytest.fixture
def captured() -> Captured:
    """A captured model."""
    return Captured()


def test_parts_close_to_the_graph_without_its_events(captured: Captured) -> None:
    """Each part has its kernels' time, and the sum is what the graph takes without events."""
    times = captured.replayed()
    assert times[Part(1, "attention")] == pytest.approx(500_000, abs=10)
    assert times[Part(2, "mlp")] == pytest.approx(700_000, abs=10)
    assert times[Part(0, "norm")] == pytest.approx(40_000, abs=10)
    assert times[Part(OUTSIDE, "lm_head")] == pytest.approx(1_500_000, abs=10)
    assert sum(times.values()) == pytest.approx(captured.graph.kernels_ns, rel=0.002)


def test_work_after_the_model_is_the_sampler(captured: Captured) -> None:
    """What a graph does when the model has returned is sampling, as in a step without a graph."""
    graph, layers = captured.device.CUDAGraph(), GraphLayers(captured.plan, captured.device)
    with torch.no_grad(), layers.capture(captured.device.graph(graph)):
        captured.model(tokens())
        captured.device.launch(300_000)
    replay = layers.replay(graph)
    captured.device.catch_up()
    times = layers.read(replay)
    assert times is not None
    assert times[captured.plan.sampler] == pytest.approx(300_000, abs=3_000)


def test_each_replay_is_timed_anew(captured: Captured) -> None:
    """A replay on a device at half speed takes twice as long in every part."""
    fast = captured.replayed()
    captured.device.speed = 0.5
    slow = captured.replayed()
    assert slow[Part(0, "mlp")] == pytest.approx(2 * fast[Part(0, "mlp")], rel=1e-4)
    assert captured.layers.missed == 0


def test_replay_under_way_is_not_read(captured: Captured) -> None:
    """Until the device has passed the graph there are no times; reading neither waits nor loses them."""
    replay = captured.layers.replay(captured.graph)
    assert captured.layers.read(replay) is None
    assert not captured.layers.is_free
    captured.device.catch_up()
    assert captured.layers.read(replay) is not None
    assert captured.layers.read(replay) is None
    assert captured.layers.is_free


def test_late_read_is_impossible_and_counted(captured: Captured) -> None:
    """Once the next replay has begun, the events are its own: the one before is missed, never mixed up."""
    first = captured.layers.replay(captured.graph)
    captured.device.catch_up()
    second = captured.layers.replay(captured.graph)
    captured.device.catch_up()
    assert captured.layers.read(first) is None
    assert captured.layers.missed == 1
    assert captured.layers.read(second) is not None


def test_a_replay_that_is_given_up_is_not_waited_for(captured: Captured) -> None:
    """Who lets go of a replay frees its graph: a step that was left out costs no other one."""
    captured.layers.replay(captured.graph)
    assert captured.layers.is_free
    captured.device.catch_up()
    captured.replayed()
    assert captured.layers.missed == 0


def test_a_device_that_fails_gives_no_times(
    captured: Captured, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while events are read is logged once and raised nowhere; the graph is not replayed with events again."""
    monkeypatch.setattr(graphs, "_logged", set())
    _, other = captured.capture()
    replay = captured.layers.replay(captured.graph)
    captured.device.catch_up()
    captured.device.fail()
    assert captured.layers.read(replay) is None
    assert captured.layers.is_broken
    assert not captured.layers.is_free
    assert captured.layers.read(replay) is None
    other.give_up(ERROR)
    assert caplog.text.count("layers inside a CUDA graph are not timed") == 1


def test_capture_of_nothing_is_an_error() -> None:
    """If the model does not run inside the capture, or a capture is repeated, the user is told."""
    model, device = ARCHITECTURES["llama"](), GraphDevice()
    layers = GraphLayers(planned(model), device)
    with pytest.raises(UserError, match="no part of the model ran"), layers.capture(device.graph(device.CUDAGraph())):
        pass
    with torch.no_grad(), layers.capture(device.graph(device.CUDAGraph())):
        model(tokens())
    with (
        pytest.raises(UserError, match="one GraphLayers for each graph"),
        layers.capture(device.graph(device.CUDAGraph())),
    ):
        pass


class SampledStep:
    """A step whose layers are sampled, as a step probe runs it."""

    def __init__(self, captured: Captured, eager: Governor) -> None:
        self.sampler = LayerSampler(captured.plan, eager)
        self.timer = CudaTimer(captured.device, 0, "cuda", now=captured.device.now)
        self._captured = captured

    def begin(self) -> None:
        """Begin it."""
        assert self.sampler.begin(self.timer, DECODE)
        self._begin = self.timer.record()

    def end(self) -> Sample | None:
        """End it."""
        self._end = self.timer.record()
        sample = self.sampler.end()
        self.sampler.stepped(DECODE, 10**10)
        return sample

    def times(self, sample: Sample | None) -> dict[Part, float]:
        """Return the parts when the device has passed the step; together they are the step less what events took."""
        assert sample is not None
        self._captured.device.catch_up()
        times = dict(zip(self._captured.plan.parts, sample.times(self.timer, self._begin, self._end), strict=True))
        self.busy_ns = self.timer.elapsed_ns(self._begin, self._end)
        self.timer.release([self._begin, self._end, *sample.marks])
        return times


@pytest.fixture
def step(captured: Captured, eager: Governor) -> SampledStep:
    """A step that can be sampled."""
    return SampledStep(captured, eager)


def test_what_is_around_a_graph_is_other_before_and_the_sampler_after(captured: Captured, step: SampledStep) -> None:
    """The parts partition the step: the graph by its events, what is before it and what follows by marks around it."""
    step.begin()
    captured.device.launch(2 * MS)
    assert step.sampler.replay(captured.layers, captured.graph)
    captured.device.launch(3 * MS)
    sample = step.end()
    times = step.times(sample)
    assert sample is not None
    assert sample.graph
    assert times[Part(2, "mlp")] == pytest.approx(700_000, abs=10)
    assert times[Part(OUTSIDE, "other")] == pytest.approx(2 * MS, abs=20_000)
    assert times[Part(OUTSIDE, "sampler")] == pytest.approx(3 * MS, abs=3_000)
    events_ns = captured.graph.events * captured.device.event_ns
    assert sum(times.values()) == pytest.approx(step.busy_ns - events_ns, abs=20_000)


@torch.no_grad()
def test_a_graph_among_calls_of_modules_adds_to_them(captured: Captured, step: SampledStep) -> None:
    """A step with a prefill without graph and a decode in one has the time of both in every part."""
    step.begin()
    captured.model(tokens())
    assert step.sampler.replay(captured.layers, captured.graph)
    times = step.times(step.end())
    assert times[Part(1, "attention")] == pytest.approx(1 * MS, abs=10)
    assert times[Part(OUTSIDE, "lm_head")] == pytest.approx(3 * MS, abs=10)
    assert sum(times.values()) == pytest.approx(2 * captured.graph.kernels_ns, rel=0.01)


def test_two_graphs_in_a_step_are_summed(captured: Captured, step: SampledStep) -> None:
    """Each has events of its own."""
    graph, layers = captured.capture()
    step.begin()
    assert step.sampler.replay(captured.layers, captured.graph)
    assert step.sampler.replay(layers, graph)
    times = step.times(step.end())
    assert times[Part(1, "attention")] == pytest.approx(1 * MS, abs=10)


def test_a_graph_that_is_replayed_twice_costs_the_sample(captured: Captured, step: SampledStep) -> None:
    """The second replay would record the events of the first anew: the plain graph does it, and nothing is told."""
    step.begin()
    assert step.sampler.replay(captured.layers, captured.graph)
    assert not step.sampler.replay(captured.layers, captured.graph)
    assert step.end() is None
    assert step.sampler.unread == 1
    captured.device.catch_up()
    step.begin()
    assert step.sampler.replay(captured.layers, captured.graph)
    assert step.end() is not None


def test_the_events_of_a_graph_are_charged(captured: Captured, step: SampledStep) -> None:
    """By what its events took the graph was slower than the plain one: that is cost of sampling."""
    charged: list[float] = []
    step.begin()
    assert step.sampler.replay(captured.layers, captured.graph)
    sample = step.end()
    step.sampler._governor.charge = lambda _, cost_ns: charged.append(cost_ns)  # type: ignore[method-assign]
    step.times(sample)
    assert charged[0] == pytest.approx((captured.graph.events - 1) * captured.device.event_ns, rel=0.05)


@torch.no_grad()
def test_a_graph_that_cannot_be_launched_is_given_up(captured: Captured, step: SampledStep) -> None:
    """The plain one is to be replayed in its place, in this step and from now on."""
    captured.graph.fails = True
    step.begin()
    captured.model(tokens())
    assert not step.sampler.replay(captured.layers, captured.graph)
    assert step.end() is None
    captured.graph.fails = False
    step.begin()
    assert not step.sampler.replay(captured.layers, captured.graph)
    assert step.end() is None
    assert captured.graph.replays == 0


def test_no_graph_is_replayed_with_events_outside_of_sampled_steps(captured: Captured, step: SampledStep) -> None:
    """Nothing runs, so that the caller replays the plain one; so it is in another thread than that of the step."""
    assert not step.sampler.replay(captured.layers, captured.graph)
    step.begin()
    replayed: list[bool] = []
    thread = Thread(target=lambda: replayed.append(step.sampler.replay(captured.layers, captured.graph)))
    thread.start()
    thread.join()
    assert replayed == [False]
    assert step.end() is None
    assert captured.graph.replays == 0
