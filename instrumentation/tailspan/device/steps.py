"""Device time of each step of one model runner: busy, idle before it, launch; and of its parts when it is sampled.

The engine's hooks call, on the thread that launches the work:

    probe.begin("decode")           right before the forward pass is launched
    probe.launched()                when it returned
    probe.end(engine_name, number)  when sampling has been enqueued
    probe.poll()                    when the device has probably passed; `begin` does so too
    probe.abandon()                 instead of `end`, if the step raised
    probe.replay(layers, graph)     between `begin` and `end`: a CUDA graph in place of the forward pass

Out: records of `recorder.engine.step_layers` and then `step_device` for each step, in order, once the device has passed
it. A step that cannot be timed is left out and counted in `untimed`.

Errors: none reaches the engine. After `MAX_ERRORS` of them a probe is off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from tailspan.device.pending import MAX_PENDING, PendingSteps, Step
from tailspan.device.sampling import LayerSampling, Sample
from tailspan.device.timer import DeviceTimer
from tailspan.guard import Guard
from tailspan.recorder.process import now_ns

__all__ = ["MAX_ERRORS", "MAX_PENDING", "MAX_REFUSED", "LayerSampling", "Sample", "StepProbe"]

MAX_REFUSED: Final = 8
"""Steps in a row without marks after which all marks are given back, so that the timer can follow a new stream."""
MAX_ERRORS: Final = 3

_GUARD: Final = Guard("device.steps")


class StepProbe:
    """Times the steps of one model runner; used by the one thread that launches its work."""

    __slots__ = ("_epoch", "_errors", "_follows", "_now", "_pending", "_refused", "_sampler", "_step", "_timer")

    def __init__(
        self, timer: DeviceTimer, sampler: LayerSampling | None = None, now: Callable[[], int] = now_ns
    ) -> None:
        """Take the clock of the runner's device and what samples its layers."""
        self._timer = timer
        self._sampler = sampler
        self._now = now
        self._epoch = timer.epoch
        self._errors = 0
        self._refused = 0
        self._pending = PendingSteps(timer)
        self._step: Step | None = None
        self._follows = False

    @property
    def is_on(self) -> bool:
        """Whether it has not given up after too many errors."""
        return self._errors < MAX_ERRORS

    @property
    def sampler(self) -> LayerSampling | None:
        """What samples the layers, if they are timed."""
        return self._sampler

    @property
    def untimed(self) -> int:
        """Steps that were left out: no marks, never passed by the device, raised, or lost to its failure."""
        return self._pending.untimed

    def begin(self, phase: str) -> bool:
        """A step of the phase (`prefill` or `decode`) is launched next; return whether its layers are sampled."""
        self._safely(self._begin, phase)
        return self._step is not None and self._step.sampling

    def replay(self, layers: Any, graph: Any) -> bool:
        """Replay a captured graph, with the events in it, if this step is sampled; False: replay the one without."""
        if self._step is None or not self._step.sampling or self._sampler is None:
            return False
        return self._safely(self._sampler.replay, layers, graph) is True

    def launched(self) -> None:
        """The forward pass has been launched."""
        step = self._step
        if step is not None and self._timer.kind != "cpu":
            step.launch_ns = self._now() - step.begin_ns

    def end(self, engine_name: str, step_number: int) -> None:
        """All work of the step has been launched; it is the engine's step of that number."""
        if self._step is not None:
            self._safely(self._end, self._step, engine_name, step_number)

    def poll(self) -> None:
        """Record the steps that the device has passed; next to nothing when none is waited for."""
        if self._pending:
            self._safely(self._pending.poll)

    def abandon(self) -> None:
        """The step raised: leave it out."""
        if self._step is not None:
            self._safely(self._abandon, self._step)

    def _safely(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self._errors >= MAX_ERRORS:
            return None
        try:
            return work(*arguments)
        except Exception:
            self._errors += 1
            self._give_up_all()
            with _GUARD:
                raise
            return None

    def _begin(self, phase: str) -> None:
        if self._step is not None:
            self._abandon(self._step)
        if self._timer.epoch != self._epoch:
            self._epoch = self._timer.epoch
            self._follows = False
            self._pending.clear()
        self._pending.poll()
        self._step = step = Step(phase, follows=self._follows)
        if self._sampler is not None and not self._refused:
            step.sampling = self._sampler.begin(self._timer, phase)
        step.begin = self._timer.record()
        if step.begin is None:
            self._stop_sampling(step)
        step.begin_ns = self._now()

    def _end(self, step: Step, engine_name: str, step_number: int) -> None:
        step.end = self._timer.record() if step.begin is not None else None
        wall_ns = self._now() - step.begin_ns
        step.engine, step.number = engine_name, step_number
        self._stop_sampling(step)
        if self._sampler is not None:
            self._sampler.stepped(step.phase, wall_ns)
        self._step = None
        self._follows = step.end is not None
        if step.end is None:
            self._without_marks(step)
            return
        self._refused = 0
        self._pending.add(step)
        if len(self._pending) > 1 or self._timer.kind == "cpu":  # else it has just been launched
            self._pending.poll()

    def _stop_sampling(self, step: Step) -> None:
        if step.sampling and self._sampler is not None:
            step.sampling = False
            step.sample = self._sampler.end()

    def _without_marks(self, step: Step) -> None:
        self._pending.leave_out(step)
        self._refused += 1
        if self._refused >= MAX_REFUSED:
            self._refused = 0
            self._pending.clear()

    def _abandon(self, step: Step) -> None:
        self._follows = False
        self._stop_sampling(step)
        self._step = None
        self._pending.leave_out(step)

    def _give_up_all(self) -> None:
        """After an error of ours: hold nothing, and record nothing of what was under way."""
        self._follows = False
        step, self._step = self._step, None
        if step is not None:
            with contextlib.suppress(Exception):
                self._stop_sampling(step)
            with contextlib.suppress(Exception):
                self._pending.leave_out(step)
        with contextlib.suppress(Exception):
            self._pending.clear()
