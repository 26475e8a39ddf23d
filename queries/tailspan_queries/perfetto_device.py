"""The lane of an engine's device, with the layers of the sampled steps in it.

Rules: a device computes one step at a time, so a step begins no earlier than the one before it ends, and `clipped_ns`
says what that cuts off (clocks are put on each other within `uncertainty_ns`). The parts of the model lie one after the
other in the order in which they are told, each as long as measured, and end with the step at the latest. Of a part that
runs twice in a layer only the sum is known, so it lies in one piece.
A step of which it is not known when the device began is left out and counted, as is one that is cut away. Parts of no
length are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

from tailspan_queries.perfetto_events import Event, Slice, complete
from tailspan_queries.perfetto_lanes import DEVICE_LANE, Tracks
from tailspan_queries.perfetto_records import Engine, Step

HOST = "cpu"
"""The device that is no device: the host's clock timed the work."""


@dataclass(slots=True)
class DeviceLanes:
    """Writes what the device did in each step, in the order of time."""

    write: Callable[[Event], None]
    tracks: Tracks
    base_ns: int
    not_placed: int = 0
    """Steps with a device time that is not known to have begun after the one before."""
    sampled: int = 0
    """Steps with layers."""
    _free_ns: dict[Engine, int] = field(default_factory=dict)

    def write_step(self, pid: int, step: Step) -> None:
        """Write the device's part of a step, if it was measured."""
        if step.busy_ns is None:
            return
        if step.begin_ns is None:
            self.not_placed += 1
            return
        device = f"{step.engine_id}: {device_name(step.device)}"
        track = self.tracks.track(pid, self.tracks.engine(pid, step.engine_id) + DEVICE_LANE, device)
        measured = Slice(track, step.begin_ns - self.base_ns, step.begin_ns - self.base_ns + max(step.busy_ns, 0))
        begin_ns = max(measured.begin_ns, self._free_ns.get(step.engine, 0))
        place = Slice(track, begin_ns, max(measured.end_ns, begin_ns))
        if place.begin_ns == place.end_ns:
            self.not_placed += 1
            return
        self._free_ns[step.engine] = place.end_ns
        name = "prefill + decode" if step.prefill_tokens and step.decode_tokens else None
        name = name or ("prefill" if step.prefill_tokens else "decode")
        clipped_ns = max(step.busy_ns, 0) - (place.end_ns - place.begin_ns)
        self.write(complete(place, name, "device", device_args(step, clipped_ns)))
        if step.parts and len(step.parts) == len(step.parts_ns) and all(map(math.isfinite, step.parts_ns)):
            self.sampled += 1
            for event in layer_events(step, place, measured.begin_ns):
                self.write(event)


def device_name(device: str) -> str:
    """Return the name of a device's lane."""
    return "cpu (host clock)" if device == HOST else device or "device"


def device_args(step: Step, clipped_ns: int) -> dict[str, Any]:
    """Return what a viewer shows of a device's part of a step."""
    args: dict[str, Any] = {
        "step": step.step,
        "busy_ns": step.busy_ns,
        "idle_before_ns": step.device_idle_ns,
        "launch_ns": step.launch_ns,
        "uncertainty_ns": step.uncertainty_ns,
        "clipped_ns": clipped_ns or None,
        "layers_mode": step.layers_mode or None,
        "layers_stand_for_steps": step.layers_steps or None,
    }
    return {name: value for name, value in args.items() if value is not None}


def layer_events(step: Step, device: Slice, begin_ns: int) -> Iterator[Event]:
    """Yield a slice for each part of the model, within one for its layer; the first begins at `begin_ns`."""
    edges = [begin_ns + round(total) for total in accumulate((max(ns, 0.0) for ns in step.parts_ns), initial=0.0)]
    edges = [min(max(edge, device.begin_ns), device.end_ns) for edge in edges]
    numbered = [(number, *layer_and_kind(part)) for number, part in enumerate(step.parts)]
    for layer, group in groupby(numbered, key=lambda part: part[1]):
        parts = list(group)
        shared: dict[str, Any] = {"step": step.step}
        if layer is not None:
            shared["layer"] = layer
            first, last = parts[0][0], parts[-1][0]
            total_ns = sum(step.parts_ns[first : last + 1])
            place = Slice(device.track, edges[first], edges[last + 1])
            if place.begin_ns == place.end_ns:
                continue
            yield complete(place, f"layer {layer}", "layer", {**shared, "ns": total_ns})
        for number, _, kind in parts:
            place = Slice(device.track, edges[number], edges[number + 1])
            if place.begin_ns < place.end_ns:
                yield complete(place, kind, "layer", {**shared, "ns": step.parts_ns[number]})


def layer_and_kind(part: str) -> tuple[int | None, str]:
    """Read `LAYER/KIND`, or `KIND` of a part that is in no layer."""
    layer, slash, kind = part.rpartition("/")
    return (int(layer), kind) if slash and layer.isdigit() else (None, kind)
