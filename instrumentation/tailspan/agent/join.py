"""Joins the records of all rings of a worker into finished requests and steps.

In: events of one pass over all rings (`feed`), then `end_pass`. Out: `Finished` requests and `FinishedStep`s.

A request is finished two passes after its END record: by then every record written before END, by whatever thread, has
been read. A request that ended while the engine still had it (an abort) waits a little for the engine's own last word.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tailspan import attributes as attr
from tailspan.agent.decode import EngineInfo, Event, Record, Step
from tailspan.agent.model import EngineState, Interval, Membership, RequestState
from tailspan.recorder import layout
from tailspan.recorder.layout import Kind

PASSES_AFTER_END = 2
ABORT_GRACE_PASSES = 20
ORPHAN_PASSES = 1200
"""Passes after which records without a BEGIN (its ring was full) are given up and counted."""
ORPHAN_CHECK_PASSES = 40
MAX_WORK = 256
MAX_STEPS = 65536
"""Steps of one engine kept for open requests."""
MAX_ENDED_KEYS = 65536
"""Keys of finished requests remembered, so that their late records are not taken for new requests."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request with everything needed to build its spans."""

    request: RequestState
    engine: EngineState | None
    steps: Mapping[int, Step]


@dataclass(frozen=True, slots=True)
class Change:
    """A request that joined or left the batch at a step."""

    trace_id: int
    key: int
    event: str


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step with the requests that joined or left at it and the idle time before it (None: unknown)."""

    step: Step
    engine: EngineState
    changes: tuple[Change, ...]
    idle_ns: int | None


class Joiner:
    """The join of one worker; not thread-safe, the agent's reading thread owns it."""

    def __init__(self) -> None:
        """Start with no open request."""
        self.open: dict[int, RequestState] = {}
        self.engines: dict[str, EngineState] = {}
        self.orphans = 0
        self._ending: dict[int, RequestState] = {}
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._passes = 0
        self._new_steps: list[tuple[int, Step]] = []
        self._changes: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        self._traces: dict[int, int] = {}
        self._handlers: dict[Kind, Callable[[RequestState, Record], None]] = {
            Kind.BEGIN: _begin,
            Kind.ATTRIBUTE: _attribute,
            Kind.STAGE: _stage,
            Kind.QUEUED: _queued,
            Kind.JOIN: self._join,
            Kind.FIRST_TOKEN: _first_token,
            Kind.LEAVE: self._leave,
            Kind.FINISH: self._finish,
            Kind.ATTRIBUTES: _attributes,
            Kind.END: self._end,
        }

    def feed(self, events: list[Event], pid: int) -> None:
        """Take in the events of one ring, in ring order."""
        for event in events:
            if isinstance(event, Step):
                engine = self._engine(event.engine)
                engine.steps[event.number], engine.pid = event, pid
                self._sampled(event)
                self._new_steps.append((self._passes, event))
            elif isinstance(event, EngineInfo):
                engine = self._engine(event.engine)
                engine.software, engine.model, engine.pid = event.software, event.model, engine.pid or pid
            elif event.kind is Kind.STEP_WORK:
                self._work(event)
            elif event.key not in self._ended:
                request = self.open.get(event.key)
                if request is None:
                    request = self.open[event.key] = RequestState(event.key, pid=pid, ended_in_pass=self._passes)
                if event.kind is Kind.BEGIN:
                    request.pid = pid
                self._handlers[event.kind](request, event)

    def end_pass(self, *, final: bool = False) -> tuple[list[Finished], list[FinishedStep]]:
        """Return what became complete; `final` when no record can come any more."""
        self._passes += 1
        steps = self._finish_steps(final)
        complete = [request for request in self._ending.values() if self._is_complete(request, final)]
        if final or self._passes % ORPHAN_CHECK_PASSES == 0:
            complete += [request for request in self.open.values() if self._is_orphan(request, final)]
        finished = [self._close(request) for request in complete]
        self._forget_steps()
        return [item for item in finished if item is not None], steps

    def abandon(self, pid: int, at_ns: int) -> list[RequestState]:
        """End the open requests of a process that disappeared as `lost`, and return them."""
        return self._give_up([r for r in self.open.values() if r.pid == pid], at_ns, "worker_disappeared")

    def held_by(self, pid: int) -> list[RequestState]:
        """Return the requests of other processes that the engines of a process have, ended by their callers or not."""
        engines = {engine.engine for engine in self.engines.values() if engine.pid == pid}
        return [
            request
            for request in self.open.values()
            if request.engine in engines and request.in_engine and request.pid != pid and request.begin_ns is not None
        ]

    def abandon_rest(self, at_ns: int) -> None:
        """End the requests of which no more will be heard as `lost`: their process stopped recording in between."""
        self._give_up(list(self.open.values()), at_ns, "recording_stopped")

    def _give_up(self, requests: list[RequestState], at_ns: int, reason: str) -> list[RequestState]:
        lost = [request for request in requests if request.end_ns is None and request.begin_ns is not None]
        for request in lost:
            request.end_ns = max(at_ns, request.begin_ns or 0)
            request.outcome, request.error_type = "lost", reason
            request.ended_in_pass = self._passes
            self._ending[request.key] = request
        return lost

    def _is_complete(self, request: RequestState, final: bool) -> bool:
        if request.begin_ns is None:
            return False
        age = self._passes - request.ended_in_pass
        grace = ABORT_GRACE_PASSES if request.in_engine else PASSES_AFTER_END
        return final or age > grace

    def _is_orphan(self, request: RequestState, final: bool) -> bool:
        return request.begin_ns is None and (final or self._passes - request.ended_in_pass > ORPHAN_PASSES)

    def _close(self, request: RequestState) -> Finished | None:
        del self.open[request.key]
        self._ending.pop(request.key, None)
        self._ended[request.key] = None
        if len(self._ended) > MAX_ENDED_KEYS:
            self._traces.pop(self._ended.popitem(last=False)[0], None)
        if request.begin_ns is None:
            self.orphans += 1
            return None
        self._traces[request.key] = request.trace_id
        engine = self.engines.get(request.engine)
        return Finished(request, engine, steps_of(request, engine))

    def _finish_steps(self, final: bool) -> list[FinishedStep]:
        ready = [step for seen, step in self._new_steps if final or self._passes - seen > PASSES_AFTER_END]
        self._new_steps = self._new_steps[len(ready) :]
        finished = []
        for step in sorted(ready, key=lambda step: (step.engine, step.number)):
            engine = self._engine(step.engine)
            idle_ns = None
            if engine.last_end_ns is not None and self._had_work(step.engine, engine.last_end_ns):
                idle_ns = max(0, step.begin_ns - engine.last_end_ns)
            engine.last_end_ns, engine.last_number = step.end_ns, max(step.number, engine.last_number)
            finished.append(FinishedStep(step, engine, self._changes_of(step), idle_ns))
        return finished

    def _had_work(self, engine: str, at_ns: int) -> bool:
        return any(
            request.engine == engine
            and request.queued_ns is not None
            and request.queued_ns <= at_ns
            and (request.finish_ns is None or request.finish_ns > at_ns)
            for request in self.open.values()
        )

    def _changes_of(self, step: Step) -> tuple[Change, ...]:
        changes = []
        for key, event in self._changes.pop((step.engine, step.number), ()):
            request = self.open.get(key)
            trace_id = request.trace_id if request is not None else self._traces.get(key, 0)
            if trace_id:
                changes.append(Change(trace_id, key, event))
        return tuple(changes)

    def _forget_steps(self) -> None:
        needed: dict[str, int] = {}
        for request in self.open.values():
            if request.memberships:
                first = request.memberships[0].join_step
                needed[request.engine] = min(first, needed.get(request.engine, first))
        for name, engine in self.engines.items():
            if not engine.steps:
                continue
            newest = max(engine.steps)
            keep_from = max(min(needed.get(name, newest), newest - 256), newest - MAX_STEPS)
            if min(engine.steps) < keep_from:
                engine.steps = {number: step for number, step in engine.steps.items() if number >= keep_from}

    def _engine(self, name: str) -> EngineState:
        engine = self.engines.get(name)
        if engine is None:
            engine = self.engines[name] = EngineState(name)
        return engine

    def _work(self, record: Record) -> None:
        work = self._engine(record.name).work
        work[record.key] = record.a, record.b
        if len(work) > MAX_WORK:  # of steps that were never told
            del work[next(iter(work))]

    def _change(self, record: Record, event: str) -> None:
        # A step that is already told of takes no more changes; the next one tells of what ended since.
        number = max(record.a, self._engine(record.name).last_number + 1)
        self._changes[record.name, number].append((record.key, event))

    def _join(self, request: RequestState, record: Record) -> None:
        request.engine = record.name
        samples_token = bool(record.flags & layout.SAMPLES_TOKEN)
        is_next_call = request.finish_ns is not None
        last = request.memberships[-1] if request.memberships else None
        if is_next_call and last is not None and last.leave_ns is None:
            last.leave_step, last.leave_ns = request.finish_step, request.finish_ns
        request.finish_step = request.finish_ns = None
        request.memberships.append(
            Membership(record.a, record.b, record.c, samples_token=samples_token, is_next_call=is_next_call)
        )
        self._changes[record.name, record.a].append((record.key, "join"))

    def _sampled(self, step: Step) -> None:
        """Give their first token to the requests that joined for it and are still there."""
        if step.failed:
            return
        for key, event in self._changes.get((step.engine, step.number), ()):
            request = self.open.get(key) if event == "join" else None
            if request is not None and any(
                part.samples_token and part.join_step == step.number for part in request.memberships
            ):
                _token(request, step.number, step.end_ns)

    def _leave(self, request: RequestState, record: Record) -> None:
        _expect_no_token(request)
        if request.memberships:
            request.memberships[-1].leave_step, request.memberships[-1].leave_ns = record.a, record.b
        self._change(record, "leave")

    def _finish(self, request: RequestState, record: Record) -> None:
        _expect_no_token(request)
        request.engine = record.name
        request.finish_step, request.finish_ns = record.a, record.b
        if record.c:
            request.output_tokens += record.c
            request.attributes[attr.GEN_AI_OUTPUT_TOKENS] = request.output_tokens
        request.prefill_steps, request.was_aborted = record.d, bool(record.flags & layout.ABORTED)
        if request.memberships:
            self._change(record, "finish")

    def _end(self, request: RequestState, record: Record) -> None:
        request.end_ns = record.a
        request.outcome = attr.OUTCOMES[record.flags]
        request.error_type = record.name
        request.http_status = record.b
        request.first_chunk_ns = record.c or None
        if record.d:
            request.text_ready_ns, request.text_busy_ns = record.d, record.e
        request.ended_in_pass = self._passes
        self._ending[request.key] = request


def steps_of(request: RequestState, engine: EngineState | None) -> Mapping[int, Step]:
    """Return the engine's steps from the first to the last in which the request took part."""
    if engine is None or not request.memberships:
        return {}
    first = request.memberships[0].join_step
    last = request.finish_step if request.finish_step is not None else max(engine.steps, default=0)
    return {number: engine.steps[number] for number in range(first, last + 1) if number in engine.steps}


def _begin(request: RequestState, record: Record) -> None:
    mask = (1 << 64) - 1
    request.name, request.begin_ns = record.name, record.a
    request.trace_id = (record.b & mask) << 64 | record.c & mask
    request.parent_id, request.flags = record.d & mask, record.flags
    if record.value:
        _describe(request, str(record.value))


def _attribute(request: RequestState, record: Record) -> None:
    if record.name and record.value is not None:
        request.attributes[record.name] = record.value


# Many requests share a set of attributes.
_parsed = lru_cache(1024)(json.loads)


def _describe(request: RequestState, encoded: str) -> None:
    try:
        request.attributes |= _parsed(encoded)
    except ValueError:  # longer than a name may be, so cut; or its registration was dropped
        return


def _attributes(request: RequestState, record: Record) -> None:
    _describe(request, record.name)
    _response_id(request, record)


def _response_id(request: RequestState, record: Record) -> None:
    if record.value is not None:
        request.attributes[attr.GEN_AI_RESPONSE_ID] = record.value


def _first_token(request: RequestState, record: Record) -> None:
    _token(request, record.a, record.b)


def _expect_no_token(request: RequestState) -> None:
    for part in request.memberships:
        part.samples_token = False


def _token(request: RequestState, step: int, at_ns: int) -> None:
    if request.first_token_ns is None:
        request.first_token_step, request.first_token_ns = step, at_ns
    elif request.memberships:
        request.memberships[-1].first_token_step = step


def _stage(request: RequestState, record: Record) -> None:
    busy_ns = record.c if record.c >= 0 else record.b - record.a
    request.measured.append(Interval(record.name, record.a, record.b, busy_ns))


def _queued(request: RequestState, record: Record) -> None:
    request.engine = record.name
    # Several sequences of one request queue one after another.
    request.queued_ns = record.a if request.queued_ns is None else min(request.queued_ns, record.a)
    if record.b:
        request.attributes.setdefault(attr.GEN_AI_INPUT_TOKENS, record.b)
    _response_id(request, record)
