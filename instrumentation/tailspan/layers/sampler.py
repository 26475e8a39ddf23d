"""Times the parts of a model in some of its steps, as many as the governor allows.

In:  a plan, and from the engine's hooks: `begin` before the step's begin mark, `end` after its end mark, `stepped` with
     the step's wall time at its end; all by the thread that launches the step.
Out: `Sample`, readable once the device has passed the end mark.
Errors: a mark that the timer does not give, or a step without calls that could be seen, costs the sample; both are
counted. Two samplers never tap one model at a time: the second leaves its step out.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any, Final

from tailspan.device.timer import DeviceTimer, Mark
from tailspan.layers.blind import blind_reason, is_compiled_now
from tailspan.layers.governor import Governor
from tailspan.layers.partition import partition
from tailspan.layers.plan import Plan
from tailspan.layers.taps import Taps

PREFILL: Final = "prefill"
DECODE: Final = "decode"
_tapped: dict[int, Any] = {}
"""Samplers by the identity of the model that they tap now."""

__all__ = ["DECODE", "PREFILL", "LayerSampler", "Sample", "blind_reason"]


class Sample:
    """One sampled step. The marks are the caller's to release."""

    __slots__ = ("_codes", "_governor", "_plan", "cost_ns", "graph", "marks", "parts_text", "phase", "steps")

    def __init__(self, plan: Plan, governor: Governor, phase: str, taps: Taps, cost_ns: int, steps: int) -> None:
        self._plan = plan
        self._governor = governor
        self._codes = tuple(taps.codes)
        self.phase = phase
        self.marks: tuple[Mark, ...] = tuple(taps.marks)
        self.parts_text = plan.parts_text
        self.steps = steps
        """Steps of the phase that it stands for: itself, and those without a sample before."""
        self.cost_ns = cost_ns
        """Host time that sampling took, ns; `times` adds its own."""
        self.graph = False

    @property
    def prefill(self) -> bool:
        """Whether the step computed prompt tokens."""
        return self.phase == PREFILL

    def times(self, timer: DeviceTimer, begin: Mark, end: Mark) -> Sequence[float]:
        """Return the ns of each part; the device must have passed `end`.

        They add up to `begin` .. `end` less what the marks took. What follows the last timed call is `sampler`, unless
        the plan has a sampler of its own.
        """
        started_ns = perf_counter_ns()
        plan, elapsed_ns = self._plan, timer.elapsed_ns
        offsets, total_ns = [elapsed_ns(begin, mark) for mark in self.marks], elapsed_ns(begin, end)
        if total_ns < 0 or min(offsets) < 0:
            return []
        tail = None if plan.has_sampler else plan.sampler
        times = partition(offsets, self._codes, total_ns, len(plan.parts), tail)
        took_ns = perf_counter_ns() - started_ns
        self.cost_ns += took_ns
        self._governor.charge(self.phase, took_ns)
        return times


class LayerSampler:
    """The sampler of one model, used by the thread that runs it."""

    def __init__(self, plan: Plan, governor: Governor) -> None:
        self._plan = plan
        self._governor = governor
        self._taps: Taps | None = None
        self._timer: DeviceTimer | None = None
        self._phase = ""
        self._cost_ns = 0
        self._is_open = False
        self.incomplete = 0
        """Samples lost because the timer had no mark."""
        self.blind = 0
        """Samples lost because no layer was called in the step: a CUDA graph ran, or something compiled."""

    def begin(self, timer: DeviceTimer, phase: str) -> bool:
        """Tap the model if this step is to be sampled; return whether it is."""
        if self._is_open:
            self.end()
        if not self._governor.wants(phase):
            return False
        started_ns = perf_counter_ns()
        model = self._plan.model
        if is_compiled_now(model) or _tapped.setdefault(id(model), self) is not self:
            return False
        self._is_open, self._phase = True, phase
        try:
            if self._taps is None or self._timer is not timer:
                self._taps, self._timer = Taps(self._plan, timer.record), timer
            self._taps.install()
        except BaseException:
            self._close()
            raise
        self._cost_ns = perf_counter_ns() - started_ns
        return True

    def end(self) -> Sample | None:
        """Take the taps out; return the sample, None if this step is not sampled or the sample is lost."""
        taps, timer = self._taps, self._timer
        if not self._is_open or taps is None or timer is None:
            return None
        started_ns = perf_counter_ns()
        self._close()
        marks, saw_layers = taps.marks, bool(taps.empty_ns)
        is_complete = saw_layers and None not in marks and len(taps.codes) == len(marks) + 1
        pairs_ns = int(median(taps.empty_ns) * len(marks) / 2) if saw_layers else 0
        cost_ns = self._cost_ns + pairs_ns + perf_counter_ns() - started_ns
        steps = self._governor.sampled(self._phase, cost_ns, kept=is_complete)
        if is_complete:
            return Sample(self._plan, self._governor, self._phase, taps, cost_ns, steps)
        timer.release([mark for mark in marks if mark is not None])
        if saw_layers:
            self.incomplete += 1
        else:
            self.blind += 1
        return None

    def stepped(self, phase: str, wall_ns: int) -> None:
        """Count a step that ended, sampled or not."""
        self._governor.stepped(phase, wall_ns)

    def _close(self) -> None:
        self._is_open = False
        try:
            if self._taps is not None:
                self._taps.remove()
        finally:
            _tapped.pop(id(self._plan.model), None)
