"""The partition of a request's wall time into stages: pure functions.

In: a `RequestState` and the steps of its engine. Out: intervals that do not overlap, in order, inside [begin, end].
What no interval covers is `unattributed`.

Every boundary is moved to at least the previous one and at most the end of the request, so that a late or missing
record shortens or drops a stage but can never make two of them overlap.

A request that an engine's records describe gets its stages from them; stages measured by hand add what those do not
say (`tls`, `receive`, `tokenize`, an earlier begin of `queue`, `detokenize`, the work of `respond`). A request without
engine has exactly the stages that were measured, and `respond` where it came over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailspan.agent.decode import Step
from tailspan.agent.measured import closed, runs
from tailspan.agent.model import Interval, RequestState

_BEFORE_RESPOND = ("tls", "receive", "tokenize", "decode", "detokenize", "respond")
"""Stages after which the rest of an HTTP request is its answer; after any other it is unattributed."""


def partition(request: RequestState, begin_ns: int, end_ns: int, steps: Mapping[int, Step]) -> list[Interval]:
    """Return the stages of the request. An unfinished stage ends where the request ended."""
    cut = _Cutter(begin_ns, end_ns)
    measured = closed(request.measured, end_ns)
    if request.queued_ns is None:
        _by_hand(cut, measured, end_ns)
        return cut.stages
    queued_ns = min([request.queued_ns, *(part.begin_ns for part in _parts(measured, "queue"))])
    for stage in ("tls", "receive", "tokenize"):
        _measured(cut, measured, stage, queued_ns)
    if cut.stages:
        cut.until("dispatch", queued_ns)
    else:
        cut.skip_to(queued_ns)
    _in_engine(cut, request, end_ns, steps)
    if request.finish_ns is not None:
        _output(cut, request, measured, end_ns)
    return cut.stages


def unattributed_ns(begin_ns: int, end_ns: int, stages: list[Interval]) -> int:
    """Return the part of the request that no stage covers."""
    return end_ns - begin_ns - sum(stage.end_ns - stage.begin_ns for stage in stages)


def token_times_ns(request: RequestState, steps: Mapping[int, Step]) -> list[int]:
    """Return when each engine step that produced a token for the request had it on the host, in order."""
    if request.first_token_step is None or request.first_token_ns is None:
        return []
    last = request.finish_step if request.finish_step is not None else max(steps, default=0)
    times = [request.first_token_ns]
    for number in range(request.first_token_step + 1, last + 1):
        step = steps.get(number)
        if step is not None and _gets_token(request, number):
            times.append(step.end_ns)
    return times


class _Cutter:
    """Cuts [begin, end] into consecutive stages from left to right."""

    __slots__ = ("end_ns", "position_ns", "stages")

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.position_ns = begin_ns
        self.end_ns = end_ns
        self.stages: list[Interval] = []

    def skip_to(self, at_ns: int) -> None:
        """Leave the time until `at_ns` unattributed."""
        self.position_ns = max(self.position_ns, min(at_ns, self.end_ns))

    def until(self, stage: str, at_ns: int, busy_ns: int | None = None, *, keep_empty: bool = False) -> None:
        """Give the time until `at_ns` to a stage."""
        begin_ns = self.position_ns
        self.skip_to(at_ns)
        if self.position_ns > begin_ns or keep_empty:
            self.stages.append(Interval(stage, begin_ns, self.position_ns, busy_ns))


def _parts(measured: list[Interval], stage: str) -> list[Interval]:
    return [part for part in measured if part.stage == stage]


def _busy_ns(parts: list[Interval]) -> int:
    return sum(part.busy_ns or 0 for part in parts)


def _by_hand(cut: _Cutter, measured: list[Interval], end_ns: int) -> None:
    for run in runs(measured):
        cut.skip_to(run.begin_ns)
        cut.until(run.stage, run.end_ns, run.busy_ns, keep_empty=run.begin_ns == run.end_ns)
    if cut.stages and cut.stages[-1].stage in _BEFORE_RESPOND and _parts(measured, "receive"):
        cut.until("respond", end_ns)


def _measured(cut: _Cutter, measured: list[Interval], stage: str, queued_ns: int) -> None:
    parts = [part for part in _parts(measured, stage) if part.begin_ns <= queued_ns]
    if parts:
        cut.skip_to(min(part.begin_ns for part in parts))
        cut.until(stage, max(part.end_ns for part in parts), _busy_ns(parts))


def _output(cut: _Cutter, request: RequestState, measured: list[Interval], end_ns: int) -> None:
    detokenized = _parts(measured, "detokenize")
    ready = [part.end_ns for part in detokenized]
    if request.text_ready_ns is not None:
        ready.append(request.text_ready_ns)
    if ready:
        cut.until("detokenize", max(ready), request.text_busy_ns + _busy_ns(detokenized), keep_empty=True)
    responded = _parts(measured, "respond")
    cut.until("respond", end_ns, _busy_ns(responded) if responded else None)


def _in_engine(cut: _Cutter, request: RequestState, end_ns: int, steps: Mapping[int, Step]) -> None:
    finish_ns = request.finish_ns if request.finish_ns is not None else end_ns
    if not request.memberships:
        cut.until("queue", finish_ns, 0)
        return
    cut.until("queue", request.memberships[0].join_ns, 0)
    for number, membership in enumerate(request.memberships):
        if number:
            cut.until("preempted", membership.join_ns, 0)
        leave_ns = membership.leave_ns if membership.leave_ns is not None else finish_ns
        first_token_ns = request.first_token_ns
        if first_token_ns is None or first_token_ns > leave_ns:
            _computed(cut, "prefill", leave_ns, steps)
            continue
        if first_token_ns > cut.position_ns:
            _computed(cut, "prefill", first_token_ns, steps)
        _computed(cut, "decode", leave_ns, steps)
    if request.memberships[-1].leave_ns is not None:
        cut.until("preempted", finish_ns, 0)


def _computed(cut: _Cutter, stage: str, until_ns: int, steps: Mapping[int, Step]) -> None:
    begin_ns = cut.position_ns
    until_ns = min(until_ns, cut.end_ns)
    busy_ns = sum(
        max(0, min(step.end_ns, until_ns) - max(step.begin_ns, begin_ns))
        for step in steps.values()
        if step.end_ns > begin_ns and step.begin_ns < until_ns
    )
    cut.until(stage, until_ns, min(busy_ns, max(0, until_ns - begin_ns)))


def _gets_token(request: RequestState, step: int) -> bool:
    return any(
        max(membership.join_step, membership.first_token_step or 0) <= step
        and (membership.leave_step is None or step <= membership.leave_step)
        for membership in request.memberships
    )
