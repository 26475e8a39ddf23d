"""The engines' side of the join: steps, what is known of each beside its record, and who joined or left at it.

In: events of one pass over all rings (`step`, `note`), the requests' changes, then `end_pass`. Out: `FinishedStep`s,
those of one engine in order.

A step is settled two passes after its record: then its changes and the idle time before it are known. Device time may
come long after that. A step of an engine that gives any waits for it, for at most `DEVICE_PASSES`, about one second,
and not at all once `PATIENCE` steps in a row got none.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tailspan.agent.decode import EngineInfo, Step
from tailspan.agent.device import DeviceTime, Layers, StepWork
from tailspan.agent.model import EngineState, RequestState

PASSES_AFTER_STEP = 2
DEVICE_PASSES = 40
"""Passes, of 25 ms, that a step waits for its device time, and a request for that of its last step."""
PATIENCE = 16
MAX_EARLY = 256
"""What is kept, for each engine and kind of record, of steps that are not told yet, or never."""
MAX_STEPS = 65536
"""Steps of one engine kept for open requests."""
KEPT_STEPS = 256
"""Steps of one engine kept whether or not a request is open."""

_Event = EngineInfo | StepWork | DeviceTime | Layers
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Change:
    """A request that joined or left the batch at a step."""

    trace_id: int
    key: int
    event: str


class FinishedStep(NamedTuple):
    """A step with the requests that joined or left at it and the idle time before it (None: unknown)."""

    step: Step
    engine: EngineState
    changes: tuple[Change, ...]
    idle_ns: int | None
    work: tuple[int, int] | None = None
    """ns of the model runner for the forward pass and for sampling."""
    device: DeviceTime | None = None
    layers: Layers | None = None

    @property
    def device_idle_ns(self) -> int | None:
        """Device time before the step in which it had nothing to do although there were requests; None: unknown."""
        return self.device.idle_ns if self.device is not None and self.idle_ns is not None else None


class Steps:
    """All engines of one worker."""

    def __init__(self, requests: Mapping[int, RequestState], trace_of: Callable[[int], int]) -> None:
        """`requests` are the open ones by key, `trace_of` tells the trace of any, 0 where it is not known."""
        self.engines: dict[str, EngineState] = {}
        self._requests = requests
        self._trace_of = trace_of
        self._passes = 0
        self._new: list[tuple[int, Step]] = []
        self._waiting: dict[str, deque[tuple[int, FinishedStep]]] = {}
        self._changes: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)

    def step(self, step: Step, pid: int) -> Iterable[RequestState]:
        """Take in a step of an engine whose steps a process records; return the open requests that joined at it."""
        engine = self._engine(step.engine)
        engine.steps[step.number], engine.pid = step, pid
        if engine.early_device and (device := engine.early_device.pop(step.number, None)) is not None:
            engine.device[step.number] = device
        self._new.append((self._passes, step))
        changes = self._changes.get((step.engine, step.number))
        if changes is None:
            return ()
        return [self._requests[key] for key, event in changes if event == "join" and key in self._requests]

    def note(self, event: _Event, pid: int) -> None:
        """Take in what else a process says of its engines."""
        engine = self._engine(event.engine)
        if isinstance(event, EngineInfo):
            engine.software, engine.model, engine.pid = event.software, event.model, engine.pid or pid
        elif isinstance(event, StepWork):
            _keep(engine.work, event.number, (event.execute_ns, event.sample_ns))
        elif isinstance(event, Layers):
            _keep(engine.layers, event.number, event)
        else:
            engine.patience = PATIENCE
            if event.number in engine.steps:
                engine.device[event.number] = event
            else:
                _keep(engine.early_device, event.number, event)

    def joined(self, engine: str, number: int, key: int) -> None:
        """Note that a request joined at a step."""
        self._changes[engine, number].append((key, "join"))

    def left(self, engine: str, number: int, key: int, event: str) -> None:
        """Note that a step was the last of a request, which was evicted (`leave`) or finished (`finish`)."""
        # A step that is already told of takes no more changes; the next one tells of what ended since.
        number = max(number, self._engine(engine).last_number + 1)
        self._changes[engine, number].append((key, event))

    def may_learn_of(self, name: str, number: int | None) -> bool:
        """Whether the device time of an engine's step, which itself is known, may still come."""
        engine = self.engines.get(name)
        if engine is None or number is None:
            return False
        step = engine.steps.get(number)
        return step is not None and _is_expected(engine, step)

    def end_pass(self, *, final: bool = False) -> list[FinishedStep]:
        """Return the steps that are complete, or waited long enough; `final` when no record can come any more."""
        self._passes += 1
        ready = [step for seen, step in self._new if final or self._passes - seen > PASSES_AFTER_STEP]
        self._new = self._new[len(ready) :]
        told = []
        for step in sorted(ready, key=lambda step: (step.engine, step.number)):
            finished, waiting = self._settle(step), self._waiting.get(step.engine)
            if waiting is None and not _is_expected(finished.engine, step):
                told.append(_with_device(finished))
            elif waiting is None:
                self._waiting[step.engine] = deque(((self._passes, finished),))
            else:
                waiting.append((self._passes, finished))
        for name in list(self._waiting):
            told += self._told(name, final)
        return told

    def forget(self) -> None:
        """Drop the steps that no open request needs."""
        needed: dict[str, int] = {}
        for request in self._requests.values():
            if request.memberships:
                first = request.memberships[0].join_step
                needed[request.engine] = min(first, needed.get(request.engine, first))
        for name, waiting in self._waiting.items():
            first = waiting[0][1].step.number
            needed[name] = min(first, needed.get(name, first))
        for name, engine in self.engines.items():
            if not engine.steps:
                continue
            newest = max(engine.steps)
            keep_from = max(min(needed.get(name, newest), newest - KEPT_STEPS), newest - MAX_STEPS)
            if min(engine.steps) < keep_from:
                engine.steps = {number: step for number, step in engine.steps.items() if number >= keep_from}
                engine.device = {number: time for number, time in engine.device.items() if number >= keep_from}

    def _engine(self, name: str) -> EngineState:
        engine = self.engines.get(name)
        if engine is None:
            engine = self.engines[name] = EngineState(name)
        return engine

    def _settle(self, step: Step) -> FinishedStep:
        engine = self._engine(step.engine)
        idle_ns = None
        if engine.last_end_ns is not None and self._had_work(step.engine, engine.last_end_ns):
            idle_ns = max(0, step.begin_ns - engine.last_end_ns)
        engine.last_end_ns, engine.last_number = step.end_ns, max(step.number, engine.last_number)
        return FinishedStep(step, engine, self._changes_of(step), idle_ns, engine.work.pop(step.number, None))

    def _told(self, name: str, final: bool) -> list[FinishedStep]:
        engine, waiting = self._engine(name), self._waiting[name]
        told: list[FinishedStep] = []
        while waiting:
            seen, finished = waiting[0]
            if _is_expected(engine, finished.step):
                if not final and self._passes - seen <= DEVICE_PASSES:
                    return told
                engine.patience -= 1
            waiting.popleft()
            told.append(_with_device(finished))
        del self._waiting[name]
        return told

    def _had_work(self, engine: str, at_ns: int) -> bool:
        return any(
            request.engine == engine
            and request.queued_ns is not None
            and request.queued_ns <= at_ns
            and (request.finish_ns is None or request.finish_ns > at_ns)
            for request in self._requests.values()
        )

    def _changes_of(self, step: Step) -> tuple[Change, ...]:
        changes = []
        for key, event in self._changes.pop((step.engine, step.number), ()):
            trace_id = self._trace_of(key)
            if trace_id:
                changes.append(Change(trace_id, key, event))
        return tuple(changes)


def _is_expected(engine: EngineState, step: Step) -> bool:
    """Whether the device time of a step may still come; a failed step was given up before the device was done."""
    return engine.patience > 0 and not step.failed and step.number not in engine.device


def _with_device(finished: FinishedStep) -> FinishedStep:
    """Return a step with what is known of its device by now."""
    step, engine, changes, idle_ns, work, *_ = finished
    if not engine.device and not engine.layers:
        return finished
    device, layers = engine.device.get(step.number), engine.layers.pop(step.number, None)
    return FinishedStep(step, engine, changes, idle_ns, work, device, layers)


def _keep(known: dict[int, _T], number: int, value: _T) -> None:
    known[number] = value
    if len(known) > MAX_EARLY:  # of steps that were never told
        del known[next(iter(known))]
