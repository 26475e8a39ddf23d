"""Fixtures of the device's time: what a step probe records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tailspan.recorder import engine as recorder
from tests.support.fake_device import FakeDevice


@dataclass
class Recorded:
    """Arguments of the calls that write records, and the order in which they came."""

    steps: list[tuple[Any, ...]] = field(default_factory=list)
    layers: list[tuple[Any, ...]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def step_device(self, *arguments: Any) -> None:
        self.steps.append(arguments)
        self.order.append("device")

    def step_layers(self, *arguments: Any, graph: bool, prefill: bool) -> None:
        self.layers.append((*arguments, graph, prefill))
        self.order.append("layers")


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILSPAN_STRICT", "1")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What probes record from now on."""
    recorded = Recorded()
    monkeypatch.setattr(recorder, "step_device", recorded.step_device)
    monkeypatch.setattr(recorder, "step_layers", recorded.step_layers)
    return recorded


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    """A device on which nobody may wait."""
    device = FakeDevice()
    yield device
    assert not device.synchronized
    assert not device.touched_by_child
