"""What times the parts of a model inside one step, as a step probe sees it; implemented by `tailspan.layers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tailspan.device.timer import DeviceTimer, Mark


class Sample(Protocol):
    """What was recorded of the parts of one step."""

    @property
    def marks(self) -> Sequence[Mark]:
        """All marks that the timer gave, or None where it gave none; the probe waits for them and gives them back."""

    @property
    def parts_text(self) -> str:
        """The parts, as `encode_parts` writes them."""

    @property
    def steps(self) -> int:
        """Steps of the same phase that this one stands for."""

    @property
    def cost_ns(self) -> int:
        """Host time that sampling took."""

    @property
    def graph(self) -> bool:
        """Whether the step replayed a CUDA graph."""

    @property
    def prefill(self) -> bool:
        """Whether the step computed prompt tokens."""

    def times(self, timer: DeviceTimer, begin: Mark, end: Mark) -> Sequence[float]:
        """Return the ns of each part, called once, when all marks are done; empty if they cannot be told."""


class LayerSampling(Protocol):
    """Decides which steps are sampled, and records marks in them."""

    def begin(self, timer: DeviceTimer, phase: str) -> bool:
        """Before a step: sample it and return True, or leave it alone."""

    def replay(self, layers: Any, graph: Any) -> bool:
        """If this step is sampled, replay a captured graph that has events of its own; False: nothing ran."""

    def end(self) -> Sample | None:
        """After a step that is sampled, whether it succeeded or not: stop recording."""

    def stepped(self, phase: str, wall_ns: int) -> None:
        """After each step, sampled or not: how long the host took from its begin to its end."""
