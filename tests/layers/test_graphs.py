"""Layer times inside a CUDA graph, on a fake of its events: a model is captured, and replays record its events anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tailspan.errors import UserError
from tailspan.layers.graphs import GraphLayers
from tailspan.layers.parts import OUTSIDE, Part
from tests.layers.architectures import ARCHITECTURES, tokens
from tests.layers.test_plan import planned
from tests.layers.test_sampler import methods

EVENT_MS = 0.002
"""What recording an event takes on the fake device."""
PART_MS = {"embedding": 0.1, "norm": 0.02, "attention": 0.5, "mlp": 0.7, "lm_head": 1.5}


class Event:
    """An external event: recorded during a capture, it is stamped by each replay."""

    def __init__(self, device: Device, enable_timing: bool, external: bool) -> None:
        assert enable_timing
        assert external, "a plain event is silently captured and can never be read"
        self._device = device
        self.at_ms: float | None = None

    def record(self) -> None:
        assert self._device.capturing
        self._device.nodes.append(self)

    def query(self) -> bool:
        return self._device.is_done

    def elapsed_time(self, end: Event) -> float:
        assert self._device.is_done, "an event was read before the device had passed it"
        assert self.at_ms is not None
        assert end.at_ms is not None
        return end.at_ms - self.at_ms


class Device:
    """A graph is its nodes in order: events and times of kernels."""

    def __init__(self) -> None:
        self.nodes: list[Event | float] = []
        self.capturing = False
        self.is_done = True
        self.speed = 1.0
        self.now_ms = 0.0

    def Event(self, *, enable_timing: bool, external: bool) -> Event:  # noqa: N802 (as torch.cuda spells it)
        return Event(self, enable_timing, external)

    @contextmanager
    def graph(self) -> Iterator[None]:
        self.capturing = True
        yield
        self.capturing = False

    def kernel(self, duration_ms: float) -> None:
        if self.capturing:
            self.nodes.append(duration_ms)

    def replay(self) -> None:
        self.is_done = False
        for node in self.nodes:
            if isinstance(node, Event):
                node.at_ms = self.now_ms
                self.now_ms += EVENT_MS
            else:
                self.now_ms += node / self.speed


@pytest.fixture
def captured() -> tuple[Device, GraphLayers, Any]:
    """A Llama that was captured: each part launches one kernel on the device."""
    model, device = ARCHITECTURES["llama"](), Device()
    plan = planned(model)
    for site in plan.sites:
        duration_ms = PART_MS.get(plan.parts[site.part].kind)
        if duration_ms is not None:
            site.owner.register_forward_pre_hook(lambda *_: None)
            _launches(site.owner, device, duration_ms)
    layers = GraphLayers(plan, device)
    before = methods(plan)
    with torch.no_grad(), layers.capture(device.graph()):
        model(tokens())
    assert methods(plan) == before
    return device, layers, plan


def _launches(module: Any, device: Device, duration_ms: float) -> None:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        device.kernel(duration_ms)
        return original(*args, **kwargs)

    module.forward = forward


def test_parts_close_to_the_graph_without_its_events(captured: tuple[Device, GraphLayers, Any]) -> None:
    """Each part has its kernels' time, and the sum is what the graph takes without events."""
    device, layers, plan = captured
    replay = layers.replay(device)
    device.is_done = True
    times = layers.read(replay)
    assert times is not None
    by_part = dict(zip(plan.parts, times, strict=True))
    assert by_part[Part(1, "attention")] == pytest.approx(0.5e6)
    assert by_part[Part(2, "mlp")] == pytest.approx(0.7e6)
    assert by_part[Part(0, "norm")] == pytest.approx(0.04e6)
    assert by_part[Part(OUTSIDE, "lm_head")] == pytest.approx(1.5e6)
    kernels_ns = sum(node for node in device.nodes if isinstance(node, float)) * 1e6
    assert sum(times) == pytest.approx(kernels_ns, rel=0.002)


def test_each_replay_is_timed_anew(captured: tuple[Device, GraphLayers, Any]) -> None:
    """A replay on a device at half speed takes twice as long in every part."""
    device, layers, plan = captured
    first = layers.replay(device)
    device.is_done = True
    fast = layers.read(first)
    device.speed = 0.5
    second = layers.replay(device)
    device.is_done = True
    slow = layers.read(second)
    assert fast is not None
    assert slow is not None
    assert slow[plan.parts.index(Part(0, "mlp"))] == pytest.approx(2 * fast[plan.parts.index(Part(0, "mlp"))])
    assert layers.missed == 0


def test_replay_under_way_is_not_read(captured: tuple[Device, GraphLayers, Any]) -> None:
    """Until the device has passed the graph there are no times; reading neither waits nor loses them."""
    device, layers, _ = captured
    replay = layers.replay(device)
    assert layers.read(replay) is None
    device.is_done = True
    assert layers.read(replay) is not None
    assert layers.read(replay) is None


def test_late_read_is_impossible_and_counted(captured: tuple[Device, GraphLayers, Any]) -> None:
    """Once the next replay has begun, the events are its own: the one before is missed, never mixed up."""
    device, layers, _ = captured
    first = layers.replay(device)
    device.is_done = True
    second = layers.replay(device)
    device.is_done = True
    assert layers.read(first) is None
    assert layers.missed == 1
    assert layers.read(second) is not None


def test_capture_of_nothing_is_an_error() -> None:
    """If the model does not run inside the capture, or a capture is repeated, the user is told."""
    model, device = ARCHITECTURES["llama"](), Device()
    layers = GraphLayers(planned(model), device)
    with pytest.raises(UserError, match="no part of the model ran"), layers.capture(device.graph()):
        pass
    with torch.no_grad(), layers.capture(device.graph()):
        model(tokens())
    with pytest.raises(UserError, match="one GraphLayers for each graph"), layers.capture(device.graph()):
        pass
