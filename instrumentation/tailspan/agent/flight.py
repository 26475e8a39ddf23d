"""The flight recorder: what the agent tells about a worker that crashed, hangs, or had to drop something.

In: what the agent saw. Out: spans of role `event`, each in a trace of its own and linked to the requests concerned, and
snapshots of requests that a stalled engine still holds. Units: monotonic ns.

A snapshot has span ids of its own and the role `snapshot`: if the engine goes on, the request still gets its real
trace, and no percentile counts it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tailspan import attributes as attr
from tailspan.agent.decode import Value
from tailspan.agent.join import Finished, Joiner, steps_of
from tailspan.agent.ledger import ledger, stage_at
from tailspan.agent.model import EngineState, RequestState
from tailspan.agent.span import Span
from tailspan.agent.spans import SpanBuilder
from tailspan.ids import new_span_id


@dataclass(frozen=True, slots=True)
class Drops:
    """Totals of what was lost on the way to the spans."""

    records: int = 0
    requests: int = 0
    spans: int = 0

    def since(self, earlier: Drops) -> Drops:
        """Return what was added since an earlier count."""
        return Drops(self.records - earlier.records, self.requests - earlier.requests, self.spans - earlier.spans)

    def __bool__(self) -> bool:
        """Whether anything was dropped."""
        return bool(self.records or self.requests or self.spans)


def crash(
    builder: SpanBuilder, joiner: Joiner, pid: int, lost: list[RequestState], stages: Mapping[int, str], at_ns: int
) -> Span:
    """Return the event of a process that disappeared with open requests, each in its stage."""
    engine = joiner.engines.get(next((request.engine for request in lost if request.engine), ""))
    attributes: dict[str, Value] = {attr.WORKER_PID: pid, attr.WORKER_OPEN_REQUESTS: len(lost)}
    return builder.event(attr.EVENT_CRASH, at_ns, attributes | _engine(engine), lost, stages)


def drops(builder: SpanBuilder, new: Drops, at_ns: int) -> Span:
    """Return the event of records, requests or spans that were dropped since the last one."""
    attributes: dict[str, Value] = {
        attr.DROPPED_RECORDS: new.records,
        attr.DROPPED_REQUESTS: new.requests,
        attr.DROPPED_SPANS: new.spans,
    }
    return builder.event(attr.EVENT_DROPS, at_ns, attributes, ())


def stages_of(joiner: Joiner, requests: Iterable[RequestState], at_ns: int) -> dict[int, str]:
    """Return by key the stage that each request is in, or was in when it ended."""
    found = {}
    for request in requests:
        engine = joiner.engines.get(request.engine)
        stage = stage_at(request, engine, steps_of(request, engine), at_ns)
        found[request.key] = stage.stage if stage is not None else "receive"
    return found


class StallWatch:
    """Notices an engine that has requests and makes no step; tells once for each stall."""

    def __init__(self, timeout_ns: int) -> None:
        """`timeout_ns` without a sign of life is a stall; 0 switches the watch off."""
        self.timeout_ns = timeout_ns
        self._told: set[str] = set()

    def look(self, joiner: Joiner, builder: SpanBuilder, now_ns: int) -> list[Span]:
        """Return the events of stalls that began to count since the last look, with snapshots of their requests."""
        spans: list[Span] = []
        for engine, requests in _waiting(joiner).items():
            silent_ns = now_ns - _last_sign(joiner.engines.get(engine), requests)
            if not self.timeout_ns or silent_ns < self.timeout_ns:
                self._told.discard(engine)
            elif engine not in self._told:
                self._told.add(engine)
                spans += self._stall(joiner, builder, engine, requests, silent_ns, now_ns)
        return spans

    def _stall(
        self, joiner: Joiner, builder: SpanBuilder, name: str, requests: list[RequestState], silent_ns: int, now_ns: int
    ) -> list[Span]:
        engine = joiner.engines.get(name)
        attributes: dict[str, Value] = {
            attr.WORKER_PID: requests[0].pid,
            attr.WORKER_OPEN_REQUESTS: len(requests),
            attr.STALLED_NS: silent_ns,
        }
        spans = [builder.event(attr.EVENT_STALL, now_ns, attributes | _engine(engine), requests)]
        for request in requests:
            spans += snapshot(builder, joiner, request, now_ns, "stalled", "worker_stalled")
        return spans


def snapshot(
    builder: SpanBuilder, joiner: Joiner, request: RequestState, now_ns: int, outcome: str, reason: str
) -> list[Span]:
    """Return the spans of an open request up to the stage that it is in, as a failed one with ids of its own."""
    now = replace(
        request,
        key=new_span_id(),
        end_ns=now_ns,
        outcome=outcome,
        error_type=reason,
        attributes=dict(request.attributes),
    )
    engine = joiner.engines.get(request.engine)
    account = ledger(Finished(now, engine, steps_of(now, engine)))
    return builder.request(account, snapshot=True) if account is not None else []


def _waiting(joiner: Joiner) -> dict[str, list[RequestState]]:
    """Return the requests that each engine has and whose callers still wait."""
    waiting: dict[str, list[RequestState]] = {}
    for request in joiner.open.values():
        if request.in_engine and request.begin_ns is not None and request.end_ns is None:
            waiting.setdefault(request.engine, []).append(request)
    return waiting


def _last_sign(engine: EngineState | None, requests: Iterable[RequestState]) -> int:
    """Return when the engine last made a step, or first had something to do after it."""
    last_step_ns = max((step.end_ns for step in engine.steps.values()), default=0) if engine is not None else 0
    first_queued_ns = min(request.queued_ns or 0 for request in requests)
    return max(last_step_ns, first_queued_ns)


def _engine(engine: EngineState | None) -> dict[str, Value]:
    if engine is None:
        return {}
    attributes: dict[str, Value] = {attr.ENGINE_ID: engine.engine, attr.ENGINE_NAME: engine.software}
    if engine.model:
        attributes[attr.GEN_AI_MODEL] = engine.model
    if engine.steps:
        step = engine.steps[max(engine.steps)]
        attributes[attr.STEP_NUMBER] = step.number
        attributes[attr.STEP_REQUESTS] = step.requests
        attributes[attr.STEP_WAITING] = step.waiting
        attributes[attr.STEP_PREFILL_TOKENS] = step.prefill_tokens
        attributes[attr.STEP_DECODE_TOKENS] = step.decode_tokens
    return attributes
