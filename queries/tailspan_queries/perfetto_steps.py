"""The lanes of an engine: its steps, what its device did in them, and counters of its batch.

Steps that overlap, as with asynchronous scheduling, take further lanes. The counters hold from the begin of a step to
the next one; between two steps in a row they are zero while the engine had no request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tailspan_queries.perfetto_device import DeviceLanes
from tailspan_queries.perfetto_events import RED, Event, Slice, complete, counter
from tailspan_queries.perfetto_flows import Flows
from tailspan_queries.perfetto_lanes import Packer, Tracks
from tailspan_queries.perfetto_records import Engine, Step
from tailspan_queries.records import STATUS_ERROR

KV_CACHE = "KV cache"
EMPTY_NS = 1_000
"""A pause without requests that is shorter is the rounding of times."""


@dataclass(slots=True)
class StepLanes:
    """Writes engine steps as they come, in the order of time."""

    write: Callable[[Event], None]
    tracks: Tracks
    flows: Flows
    devices: DeviceLanes
    base_ns: int
    _packers: dict[Engine, Packer] = field(default_factory=dict)
    _last: dict[Engine, Step] = field(default_factory=dict)

    def write_step(self, step: Step) -> None:
        """Write one step with its device time, layers and counters."""
        pid = self.tracks.pid(step.service, step.instance, step.model)
        begin_ns = max(step.start_ns - self.base_ns, 0)
        end_ns = max(step.end_ns - self.base_ns, begin_ns + 1)
        lane = self._packers.setdefault(step.engine, Packer()).place(begin_ns, end_ns)
        name = f"{step.engine_id}: steps" + (f" {lane + 1}" if lane else "")
        track = self.tracks.track(pid, self.tracks.engine(pid, step.engine_id) + lane, name)
        place = Slice(track, begin_ns, end_ns)
        color = RED if step.status_code == STATUS_ERROR else ""
        self.write(complete(place, phase(step), "step", step_args(step), color=color))
        self.flows.found(step.engine, step.step, place)
        self.devices.write_step(pid, step)
        self._write_counters(pid, step, begin_ns)

    def _write_counters(self, pid: int, step: Step, begin_ns: int) -> None:
        last = self._last.get(step.engine)
        self._last[step.engine] = step
        if last is not None and step.step == last.step + 1 and was_empty(last, step):
            zeros = {name: dict.fromkeys(values, 0.0) for name, values in counters(last).items() if name != KV_CACHE}
            self._write_values(pid, step.engine_id, last.end_ns - self.base_ns, zeros)
        self._write_values(pid, step.engine_id, begin_ns, counters(step))

    def _write_values(self, pid: int, engine_id: str, at_ns: int, values: dict[str, dict[str, float]]) -> None:
        for name, series in values.items():
            self.write(counter(pid, at_ns, f"{engine_id}: {name}", series))


def was_empty(last: Step, step: Step) -> bool:
    """Say whether the engine had no request for a while between a step and the next."""
    return step.start_ns - step.idle_ns - last.end_ns > EMPTY_NS


def phase(step: Step) -> str:
    """Return what a step computed: `prefill`, `decode`, `prefill + decode`; a step without tokens is `step`."""
    parts = [name for name, tokens in (("prefill", step.prefill_tokens), ("decode", step.decode_tokens)) if tokens]
    return " + ".join(parts) or "step"


def counters(step: Step) -> dict[str, dict[str, float]]:
    """Return the values of each counter of an engine by series."""
    found: dict[str, dict[str, float]] = {
        "batch": {"requests": step.requests},
        "waiting": {"requests": step.waiting},
        "tokens": {"prefill": step.prefill_tokens, "decode": step.decode_tokens},
    }
    if step.kv_usage_ratio is not None:
        found[KV_CACHE] = {"percent": round(step.kv_usage_ratio * 100, 4)}
    return found


def step_args(step: Step) -> dict[str, Any]:
    """Return what a viewer shows of a step."""
    args: dict[str, Any] = {
        "step": step.step,
        "requests": step.requests,
        "prefill_tokens": step.prefill_tokens,
        "decode_tokens": step.decode_tokens,
        "waiting": step.waiting,
        "preempted": step.preempted,
        "kv_usage_ratio": step.kv_usage_ratio,
        "wall_ns": step.wall_ns,
        "idle_before_ns": step.idle_ns,
        "host_execute_ns": step.execute_ns,
        "host_sample_ns": step.sample_ns,
        "device_busy_ns": step.busy_ns,
        "model": step.model,
        "stands_for_steps": step.weight if step.weight != 1 else None,
    }
    return {name: value for name, value in args.items() if value is not None}
