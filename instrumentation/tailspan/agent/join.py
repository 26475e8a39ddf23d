"""Joins the records of all rings of a worker into finished requests and steps.

In: events of one pass over all rings (`feed`), then `end_pass`. Out: `Finished` requests and `FinishedStep`s.

A request is finished two passes after its END record: by then every record written before END, by whatever thread, has
been read. A request that ended while the engine still had it (an abort) waits a little for the engine's own last word,
and one of an engine that gives device times waits for that of its last step (`steps`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailspan import attributes as attr
from tailspan.agent import request_records as about
from tailspan.agent.decode import Event, Record, Step
from tailspan.agent.model import EngineState, Membership, RequestState
from tailspan.agent.steps import DEVICE_PASSES, FinishedStep, Steps
from tailspan.recorder import layout
from tailspan.recorder.layout import Kind

PASSES_AFTER_END = 2
ABORT_GRACE_PASSES = 20
ORPHAN_PASSES = 1200
"""Passes after which records without a BEGIN (its ring was full) are given up and counted."""
ORPHAN_CHECK_PASSES = 40
MAX_ENDED_KEYS = 65536
"""Keys of finished requests remembered, so that their late records are not taken for new requests."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request with everything needed to build its spans."""

    request: RequestState
    engine: EngineState | None
    steps: Mapping[int, Step]


class Joiner:
    """The join of one worker; not thread-safe, the agent's reading thread owns it."""

    def __init__(self) -> None:
        """Start with no open request."""
        self.open: dict[int, RequestState] = {}
        self.orphans = 0
        self._ending: dict[int, RequestState] = {}
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._passes = 0
        self._traces: dict[int, int] = {}
        self._steps = Steps(self.open, self._trace_of)
        self._handlers: dict[Kind, Callable[[RequestState, Record], None]] = {
            Kind.BEGIN: about.begin,
            Kind.ATTRIBUTE: about.attribute,
            Kind.STAGE: about.stage,
            Kind.QUEUED: about.queued,
            Kind.JOIN: self._join,
            Kind.FIRST_TOKEN: about.first_token,
            Kind.LEAVE: self._leave,
            Kind.FINISH: self._finish,
            Kind.ATTRIBUTES: about.attributes,
            Kind.END: self._end,
        }

    @property
    def engines(self) -> Mapping[str, EngineState]:
        """The engines by id."""
        return self._steps.engines

    def feed(self, events: list[Event], pid: int) -> None:
        """Take in the events of one ring, in ring order."""
        for event in events:
            if isinstance(event, Step):
                for joined in self._steps.step(event, pid):
                    _sampled(joined, event)
            elif not isinstance(event, Record):
                self._steps.note(event, pid)
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
        steps = self._steps.end_pass(final=final)
        complete = [request for request in self._ending.values() if self._is_complete(request, final)]
        if final or self._passes % ORPHAN_CHECK_PASSES == 0:
            complete += [request for request in self.open.values() if self._is_orphan(request, final)]
        finished = [self._close(request) for request in complete]
        self._steps.forget()
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
        if final or age <= grace:
            return final
        return age > DEVICE_PASSES or not self._steps.may_learn_of(request.engine, request.finish_step)

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

    def _trace_of(self, key: int) -> int:
        request = self.open.get(key)
        return request.trace_id if request is not None else self._traces.get(key, 0)

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
        self._steps.joined(record.name, record.a, record.key)

    def _leave(self, request: RequestState, record: Record) -> None:
        about.expect_no_token(request)
        if request.memberships:
            request.memberships[-1].leave_step, request.memberships[-1].leave_ns = record.a, record.b
        self._steps.left(record.name, record.a, record.key, "leave")

    def _finish(self, request: RequestState, record: Record) -> None:
        about.expect_no_token(request)
        request.engine = record.name
        request.finish_step, request.finish_ns = record.a, record.b
        if record.c:
            request.output_tokens += record.c
            request.attributes[attr.GEN_AI_OUTPUT_TOKENS] = request.output_tokens
        request.prefill_steps, request.was_aborted = record.d, bool(record.flags & layout.ABORTED)
        if request.memberships:
            self._steps.left(record.name, record.a, record.key, "finish")

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


def _sampled(request: RequestState, step: Step) -> None:
    """Give its first token to a request that joined for it at this step and is still there."""
    if not step.failed and any(part.samples_token and part.join_step == step.number for part in request.memberships):
        about.token(request, step.number, step.end_ns)


def steps_of(request: RequestState, engine: EngineState | None) -> Mapping[int, Step]:
    """Return the engine's steps from the first to the last in which the request took part."""
    if engine is None or not request.memberships:
        return {}
    first = request.memberships[0].join_step
    last = request.finish_step if request.finish_step is not None else max(engine.steps, default=0)
    return {number: engine.steps[number] for number in range(first, last + 1) if number in engine.steps}
