"""What records say of a step beside its STEP: host and device time, and the times of the model's parts.

In: records of kinds STEP_WORK to LAYER_TIMES. Out: `StepWork`, `DeviceTime` and `Layers` events.
Errors: none. A group of layer times that is not whole, or that makes no sense, is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from tailspan import attributes as attr
from tailspan.layers.parts import decode_parts
from tailspan.recorder import layout

CPU = "cpu"
"""The device whose time is not `tailspan.gpu_ns`."""
MAX_MODELS = 64
"""Models whose list of parts is kept."""

_PIECE = r"(?:\d{1,4}-\d{1,4}:)?[a-z_]+(?:,[a-z_]+)*"
_PARTS = re.compile(rf"{_PIECE}(?:\|{_PIECE})*")
"""What `decode_parts` can be given: nothing else, and no more layers than a memory holds."""


class StepWork(NamedTuple):
    """Host time of a step in the model runner; ns."""

    engine: str
    number: int
    execute_ns: int
    sample_ns: int


class DeviceTime(NamedTuple):
    """Device time of a step, by one of `attr.DEVICES`. Times in monotonic ns of the host, None when unknown."""

    engine: str
    number: int
    device: str
    busy_ns: int
    idle_ns: int | None
    begin_ns: int | None
    uncertainty_ns: int
    launch_ns: int | None


class Layers(NamedTuple):
    """Device time of each part of the model in one step, in order of execution.

    `steps` of this `phase` (prefill or decode) are represented by this one; `mode` is one of `attr.LAYERS_MODES`.
    """

    engine: str
    number: int
    parts: tuple[str, ...]
    """`KIND` or `LAYER/KIND`."""
    ns: tuple[float, ...]
    steps: int
    cost_ns: int
    mode: str
    phase: str


def device_time(engine: str, record: tuple[int, ...]) -> DeviceTime | None:
    """Return what a STEP_DEVICE record says, None if it is of no device that we know."""
    _, device, _, number, busy_ns, idle_ns, begin_ns, uncertainty_ns, launch_ns, _ = record
    if not 0 < device < len(attr.DEVICES) or busy_ns < 0:
        return None
    return DeviceTime(
        engine, number, attr.DEVICES[device], busy_ns, idle_ns if idle_ns >= 0 else None,
        begin_ns if begin_ns > 0 else None, max(0, uncertainty_ns), launch_ns if launch_ns >= 0 else None,
    )  # fmt: skip


class LayerGroup:
    """The LAYERS record of one ring whose times are not all there yet, across any number of reads."""

    __slots__ = ("_head", "_identity", "_ns", "_parts")

    def __init__(self) -> None:
        """Start with none."""
        self._identity: tuple[int, int] | None = None
        self._head = (0, "", 0, 0)
        self._parts: tuple[str, ...] = ()
        self._ns: list[float] = []

    def begin(self, record: tuple[int, ...], name_of: Callable[[int], str]) -> None:
        """Take a LAYERS record; what was not whole before it is given up."""
        _, flags, engine, number, text, count, steps, cost_ns, _, _ = record
        parts = _part_names(name_of(text))
        self._identity, self._ns = None, []
        if parts and len(parts) == count and steps > 0:
            self._identity = engine, number
            self._head, self._parts = (flags, name_of(engine), steps, max(0, cost_ns)), parts

    def add(self, slot: bytes) -> Layers | None:
        """Take a LAYER_TIMES record; return the whole group with its last one."""
        _, chunk, engine, number, *times, _ = layout.LAYER_TIMES_RECORD.unpack(slot)
        if self._identity is None:
            return None
        if (engine, number) != self._identity or chunk * layout.LAYER_TIMES != len(self._ns):
            self._identity = None
            return None
        self._ns += times
        if len(self._ns) < len(self._parts):
            return None
        self._identity, ns = None, tuple(self._ns[: len(self._parts)])
        if min(ns) < 0 or not math.isfinite(sum(ns)):
            return None
        flags, name, steps, cost_ns = self._head
        mode = attr.LAYERS_MODES[bool(flags & layout.LAYERS_GRAPH)]
        phase = "prefill" if flags & layout.LAYERS_PREFILL else "decode"
        return Layers(name, number, self._parts, ns, steps, cost_ns, mode, phase)


@lru_cache(MAX_MODELS)
def _part_names(text: str) -> tuple[str, ...]:
    """Return the names of a model's parts, none for a text that was lost or is none of `encode_parts`."""
    return tuple(part.name for part in decode_parts(text)) if _PARTS.fullmatch(text) else ()
