"""Steps that the device has not passed yet, and the records of those that it has, in the order of the steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from tailspan import attributes as attr
from tailspan.device.sampling import Sample
from tailspan.device.timer import UNKNOWN, DeviceTimer, HostTime, Mark
from tailspan.recorder import engine as recorder

MAX_PENDING: Final = 64
"""Steps that wait for the device; one that is that many steps old will not be done any more, and is left out."""

_NOWHEN: Final = HostTime(0, 0)


class Step:
    """A step under way, or one that the device has not passed yet. Units: ns; -1 where not known."""

    __slots__ = ("begin", "begin_ns", "end", "engine", "follows", "launch_ns", "number", "phase", "sample", "sampling")

    def __init__(self, phase: str, *, follows: bool) -> None:
        self.phase = phase
        self.follows = follows
        """Whether the step before has an end mark, so that the gap between them can be told."""
        self.begin: Mark | None = None
        self.end: Mark | None = None
        self.begin_ns = 0
        self.launch_ns = UNKNOWN
        self.engine = ""
        self.number = 0
        self.sampling = False
        self.sample: Sample | None = None


class PendingSteps:
    """A bounded queue; the oldest step is looked at first, so that steps are never mixed."""

    __slots__ = ("_before", "_device", "_steps", "_timer", "untimed")

    def __init__(self, timer: DeviceTimer) -> None:
        self.untimed = 0
        """Steps that were left out."""
        self._timer = timer
        self._device = attr.DEVICES.index(timer.kind)
        self._steps: deque[Step] = deque()
        self._before: Mark | None = None
        """End of the step before the oldest, unless that one was left out."""

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Step) -> None:
        """Wait for a step that has both marks."""
        self._steps.append(step)
        if len(self._steps) > MAX_PENDING:
            self._forget_before()
            self.leave_out(self._steps.popleft())

    def poll(self) -> None:
        """Record the steps that are done."""
        while self._steps and self._is_done(self._steps[0]):
            self._complete(self._steps.popleft())

    def leave_out(self, step: Step) -> None:
        """Give up a step that is not, or no more, in the queue."""
        self.untimed += 1
        self._give_back(step)

    def clear(self) -> None:
        """Leave out all of them and hold no mark."""
        self._forget_before()
        while self._steps:
            self.leave_out(self._steps.popleft())

    def _is_done(self, step: Step) -> bool:
        is_done = self._timer.is_done
        if not (is_done(step.begin) and is_done(step.end)):
            return False
        return step.sample is None or all(mark is None or is_done(mark) for mark in step.sample.marks)

    def _complete(self, step: Step) -> None:
        timer, epoch = self._timer, self._timer.epoch
        try:
            busy_ns = timer.elapsed_ns(step.begin, step.end)
            known = step.follows and self._before is not None
            idle_ns = timer.elapsed_ns(self._before, step.begin) if known else UNKNOWN
            timer.host_time(step.end)
            began = timer.host_time(step.begin) or _NOWHEN
            times = step.sample.times(timer, step.begin, step.end) if step.sample is not None else ()
            self._forget_before()
            if busy_ns < 0 or timer.epoch != epoch:
                self.untimed += 1
                return
            if step.sample is not None and len(times):
                _record_layers(step, step.sample, times)
            recorder.step_device(
                step.engine, step.number, self._device, busy_ns, max(idle_ns, UNKNOWN), *began, step.launch_ns
            )
            self._before, step.end = step.end, None
        finally:
            self._give_back(step)

    def _give_back(self, step: Step) -> None:
        marks = [step.begin, step.end, *(step.sample.marks if step.sample is not None else ())]
        self._timer.release(mark for mark in marks if mark is not None)

    def _forget_before(self) -> None:
        if self._before is not None:
            self._timer.release((self._before,))
            self._before = None


def _record_layers(step: Step, sample: Sample, times: Sequence[float]) -> None:
    recorder.step_layers(
        step.engine, step.number, sample.parts_text, times, sample.steps, sample.cost_ns,
        graph=sample.graph, prefill=sample.prefill,
    )  # fmt: skip
