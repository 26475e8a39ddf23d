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

from collections.abc import Sequence

from tailspan.agent.measured import closed, runs
from tailspan.agent.model import Interval, RequestState
from tailspan.agent.timeline import Timeline

_ByStage = dict[str, list[Interval]]

_BEFORE_RESPOND = ("tls", "receive", "tokenize", "decode", "detokenize", "respond")
"""Stages after which the rest of an HTTP request is its answer; after any other it is unattributed."""


def partition(request: RequestState, begin_ns: int, end_ns: int, timeline: Timeline) -> list[Interval]:
    """Return the stages of the request. An unfinished stage ends where the request ended."""
    cut = _Cutter(begin_ns, end_ns)
    complete = closed(request.measured, end_ns)
    if request.queued_ns is None:
        _by_hand(cut, complete, end_ns)
        return cut.stages
    measured: _ByStage = {}
    for part in complete:
        measured.setdefault(part.stage, []).append(part)
    queued_ns = min([request.queued_ns, *[part.begin_ns for part in measured.get("queue", ())]])
    for stage in ("tls", "receive", "tokenize"):
        _measured(cut, measured, stage, queued_ns)
    if cut.stages:
        cut.until("dispatch", queued_ns)
    else:
        cut.skip_to(queued_ns)
    _in_engine(cut, request, end_ns, timeline)
    if request.finish_ns is not None:
        _output(cut, request, measured, end_ns)
    return cut.stages


def unattributed_ns(begin_ns: int, end_ns: int, stages: list[Interval]) -> int:
    """Return the part of the request that no stage covers."""
    return end_ns - begin_ns - sum(stage.end_ns - stage.begin_ns for stage in stages)


def token_times_ns(request: RequestState, timeline: Timeline) -> list[int]:
    """Return when each engine step that produced a token for the request had it on the host, in order."""
    if request.first_token_step is None or request.first_token_ns is None:
        return []
    times = [request.first_token_ns]
    first, last = request.first_token_step + 1, timeline.last
    if request.finish_step is not None:
        last = request.finish_step
    for begin, end in _in_batch(request, last):
        times += timeline.ends_ns(max(first, begin), min(last, end))
        first = max(first, end + 1)
    return times


def _in_batch(request: RequestState, last: int) -> list[tuple[int, int]]:
    """Return the first and last step of each time that the request was in the batch and past its prompt."""
    return sorted(
        (max(part.join_step, part.first_token_step or 0), last if part.leave_step is None else part.leave_step)
        for part in request.memberships
    )


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


def _busy_ns(parts: Sequence[Interval]) -> int:
    return sum([part.busy_ns or 0 for part in parts])


def _by_hand(cut: _Cutter, measured: list[Interval], end_ns: int) -> None:
    for run in runs(measured):
        cut.skip_to(run.begin_ns)
        cut.until(run.stage, run.end_ns, run.busy_ns, keep_empty=run.begin_ns == run.end_ns)
    if cut.stages and cut.stages[-1].stage in _BEFORE_RESPOND and any(part.stage == "receive" for part in measured):
        cut.until("respond", end_ns)


def _measured(cut: _Cutter, measured: _ByStage, stage: str, queued_ns: int) -> None:
    parts = [part for part in measured.get(stage, ()) if part.begin_ns <= queued_ns]
    if parts:
        cut.skip_to(min([part.begin_ns for part in parts]))
        cut.until(stage, max([part.end_ns for part in parts]), _busy_ns(parts))


def _output(cut: _Cutter, request: RequestState, measured: _ByStage, end_ns: int) -> None:
    detokenized = measured.get("detokenize", ())
    ready = [part.end_ns for part in detokenized]
    if request.text_ready_ns is not None:
        ready.append(request.text_ready_ns)
    if ready:
        cut.until("detokenize", max(ready), request.text_busy_ns + _busy_ns(detokenized), keep_empty=True)
    responded = measured.get("respond", ())
    cut.until("respond", end_ns, _busy_ns(responded) if responded else None)


def _in_engine(cut: _Cutter, request: RequestState, end_ns: int, timeline: Timeline) -> None:
    finish_ns = request.finish_ns if request.finish_ns is not None else end_ns
    if request.was_aborted and request.outcome == "ok" and request.text_ready_ns is not None:
        # A stop string ends the answer when its text is made; the engine hears of it some steps later.
        finish_ns = min(finish_ns, request.text_ready_ns)
    if not request.memberships:
        cut.until("queue", finish_ns, 0)
        return
    cut.until("queue", request.memberships[0].join_ns, 0)
    for number, membership in enumerate(request.memberships):
        if membership.is_next_call:
            cut.skip_to(membership.join_ns)  # what its caller did in between is not known
        elif number:
            cut.until("preempted", membership.join_ns, 0)
        leave_ns = membership.leave_ns if membership.leave_ns is not None else finish_ns
        first_token_ns = request.first_token_ns
        if first_token_ns is None or first_token_ns > leave_ns:
            _computed(cut, "prefill", leave_ns, timeline)
            continue
        if first_token_ns > cut.position_ns:
            _computed(cut, "prefill", first_token_ns, timeline)
        _computed(cut, "decode", leave_ns, timeline)
    if request.memberships[-1].leave_ns is not None:
        cut.until("preempted", finish_ns, 0)


def _computed(cut: _Cutter, stage: str, until_ns: int, timeline: Timeline) -> None:
    until_ns = min(until_ns, cut.end_ns)
    cut.until(stage, until_ns, timeline.busy_ns(cut.position_ns, until_ns))
