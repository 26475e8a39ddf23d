"""Times the parts of a model in some of its steps, as many as the governor allows.

In:  a plan, and from the engine's hooks: `begin` before the step's begin mark, `end` after its end mark, `stepped` with
     the step's wall time at its end; all by the thread that launches the step.
Out: `Sample`, readable once the device has passed the end mark.
Errors: a mark that the timer does not give, or a step without calls that could be seen, costs the sample; both are
counted. Two samplers never tap one model at a time: the second leaves its step out.

A captured graph that is replayed in the step (`replay`) is a call like those of modules: what it took by its own events
goes to its parts, what else passed between the marks around it to `other`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final

from tailspan.device.timer import DeviceTimer, Mark
from tailspan.guard import Guard
from tailspan.layers.blind import blind_reason, is_compiled_now
from tailspan.layers.governor import Governor
from tailspan.layers.graphs import GraphLayers, Replay
from tailspan.layers.partition import LEFT, PART, partition
from tailspan.layers.plan import Plan
from tailspan.layers.taps import Taps

PREFILL: Final = "prefill"
DECODE: Final = "decode"
UNSEEN: Final = 2
"""A sample slows its step by up to 1.5 times the time that it can measure of itself, cold caches say; with this factor
the governor keeps the whole of it within the budget. Source: `benchmarks/bench_layers.py`."""
_tapped: dict[int, Any] = {}
"""Samplers by the identity of the model that they tap now."""
_GUARD: Final = Guard("layers.replay")

__all__ = ["DECODE", "PREFILL", "LayerSampler", "Sample", "blind_reason"]


class Sample:
    """One sampled step. The marks are the caller's to release."""

    __slots__ = (
        "_codes", "_governor", "_plan", "_replays", "cost_ns", "marks", "parts_text", "phase", "steps",
    )  # fmt: skip

    def __init__(
        self, plan: Plan, governor: Governor, phase: str, taps: Taps, replays: list[Replay], cost_ns: int, steps: int
    ) -> None:
        self._plan = plan
        self._governor = governor
        self._codes = tuple(taps.codes)
        self._replays = replays
        self.phase = phase
        self.marks: tuple[Mark, ...] = tuple(taps.marks)
        self.parts_text = plan.parts_text
        self.steps = steps
        """Steps of the phase that it stands for: itself, and those without a sample before."""
        self.cost_ns = cost_ns
        """Host time that sampling took, ns; `times` adds its own."""

    @property
    def graph(self) -> bool:
        """Whether the step replayed a CUDA graph whose parts are timed."""
        return bool(self._replays)

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
        for replay in self._replays:
            inside = replay.layers.read(replay)
            if inside is None:
                times = []
                break
            times[plan.other] = max(0.0, times[plan.other] - replay.total_ns)
            times = [sum(pair) for pair in zip(times, inside, strict=True)]
            events_ns = max(0.0, replay.total_ns - sum(inside))
            self._governor.charge(self.phase, events_ns)  # the graph without events would have been that much faster
        took_ns = perf_counter_ns() - started_ns
        self.cost_ns += took_ns
        self._governor.charge(self.phase, took_ns * UNSEEN)
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
        self._replays: list[Replay] = []
        self._is_lost = False
        self.incomplete = 0
        """Samples lost because the timer had no mark."""
        self.blind = 0
        """Samples lost because no layer was called in the step: a CUDA graph ran, or something compiled."""
        self.unread = 0
        """Samples lost because a graph was replayed without events: an earlier replay was still to be read."""

    @property
    def plan(self) -> Plan:
        """The parts of the model."""
        return self._plan

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other samplers away from the model; yields False if one has taps in it now."""
        model = id(self._plan.model)
        owner = _tapped.setdefault(model, self)
        try:
            yield owner is self
        finally:
            if owner is self and not self._is_open:
                _tapped.pop(model, None)

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
        self._replays, self._is_lost = [], False
        try:
            if self._taps is None or self._timer is not timer:
                self._taps, self._timer = Taps(self._plan, timer.record), timer
            self._taps.install()
        except BaseException:
            self._close()
            raise
        self._cost_ns = perf_counter_ns() - started_ns
        return True

    def replay(self, layers: GraphLayers, graph: Any) -> bool:
        """Replay a graph that was captured with events, if this step is sampled; False: nothing was replayed.

        A graph whose earlier replay is still to be read is not replayed, and costs the sample.
        """
        taps, timer = self._taps, self._timer
        if not self._is_open or taps is None or timer is None or taps.thread != get_ident():
            return False
        if not layers.is_free:
            self._is_lost = True
            return False
        before = timer.record()
        try:
            replay = layers.replay(graph)
        except Exception as error:
            layers.give_up(error)
            timer.release([before] if before is not None else [])
            self._is_lost = True
            return False
        after = None
        with _GUARD:  # the graph runs: whatever fails from here on must not replay another
            after = timer.record()
        self._replays.append(replay)
        outside = taps.codes[-1] & PART | LEFT
        taps.marks += before, after
        taps.codes += self._plan.other, outside
        return True

    def end(self) -> Sample | None:
        """Take the taps out; return the sample, None if this step is not sampled or the sample is lost."""
        taps, timer = self._taps, self._timer
        if not self._is_open or taps is None or timer is None:
            return None
        started_ns = perf_counter_ns()
        self._close()
        replays, self._replays = self._replays, []
        marks, saw_layers = taps.marks, bool(taps.empty_ns or replays)
        is_whole = None not in marks and len(taps.codes) == len(marks) + 1
        is_complete = saw_layers and is_whole and not self._is_lost
        pairs_ns = int(median(taps.empty_ns) * len(marks) / 2) if taps.empty_ns else 0
        cost_ns = self._cost_ns + pairs_ns + perf_counter_ns() - started_ns
        steps = self._governor.sampled(self._phase, cost_ns * UNSEEN, kept=is_complete)
        if is_complete:
            return Sample(self._plan, self._governor, self._phase, taps, replays, cost_ns, steps)
        timer.release([mark for mark in marks if mark is not None])
        if self._is_lost:
            self.unread += 1
        elif saw_layers:
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
