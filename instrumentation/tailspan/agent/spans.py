"""From finished requests and steps to OpenTelemetry spans with explicit times.

All spans of one request use one offset from monotonic to wall time, so a child never begins before its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tailspan import attributes as attr
from tailspan.agent import histogram
from tailspan.agent.decode import Value
from tailspan.agent.join import FinishedStep
from tailspan.agent.ledger import Ledger
from tailspan.agent.model import Interval, RequestState
from tailspan.ids import new_span_id, new_trace_id
from tailspan.version import __version__

_SCOPE = InstrumentationScope(attr.SCOPE_NAME, __version__)
_ENGINE_STAGES = ("prefill", "decode")


class SpanBuilder:
    """Builds the spans of one worker."""

    def __init__(self, resource: Resource, offset_ns: int) -> None:
        """`offset_ns` is wall time less monotonic time."""
        self.resource = resource
        self.offset_ns = offset_ns

    def request(self, ledger: Ledger, weight: float = 1.0, *, snapshot: bool = False) -> list[ReadableSpan]:
        """Return the request span and one child per stage; a snapshot is of a request that goes on."""
        request = ledger.request
        extra = _weight(weight) | ({attr.ROLE: attr.ROLE_SNAPSHOT} if snapshot else {})
        flags = request.flags | TraceFlags.SAMPLED
        context = _context(request.trace_id, request.key, flags)
        parent = None
        if request.parent_id:
            parent = _context(request.trace_id, request.parent_id, request.flags, remote=True)
        status = _error(request) if ledger.failed else Status()
        root = self._span(
            request.name, context, parent, SpanKind.SERVER, ledger.begin_ns, ledger.end_ns,
            self._request_attributes(ledger) | extra, status,
        )  # fmt: skip
        children = [
            self._span(
                stage.stage, _context(request.trace_id, new_span_id(), flags), context, SpanKind.INTERNAL,
                stage.begin_ns, stage.end_ns, self._stage_attributes(ledger, stage) | extra,
                status if stage is ledger.stages[-1] else Status(),
            )
            for stage in ledger.stages
        ]  # fmt: skip
        return [root, *children]

    def event(
        self, name: str, at_ns: int, attributes: Mapping[str, Value], requests: Iterable[RequestState]
    ) -> ReadableSpan:
        """Return a span without length for something that happened to the worker, linked to the requests concerned."""
        links = [Link(_context(request.trace_id, request.key, request.flags, remote=True)) for request in requests]
        context = _context(new_trace_id(), new_span_id(), TraceFlags.SAMPLED)
        described = {attr.ROLE: attr.ROLE_EVENT, **attributes}
        return self._span(
            name, context, None, SpanKind.INTERNAL, at_ns, at_ns, described, Status(StatusCode.ERROR, name), links
        )

    def step(self, finished: FinishedStep, weight: float = 1.0) -> ReadableSpan:
        """Return the span of one engine step, in a trace of its own."""
        step, engine = finished.step, finished.engine
        attributes: dict[str, Value] = {
            attr.ROLE: attr.ROLE_STEP,
            attr.ENGINE_ID: step.engine,
            attr.ENGINE_NAME: engine.software,
            attr.GEN_AI_MODEL: engine.model,
            attr.STEP_NUMBER: step.number,
            attr.STEP_REQUESTS: step.requests,
            attr.STEP_PREFILL_TOKENS: step.prefill_tokens,
            attr.STEP_DECODE_TOKENS: step.decode_tokens,
            attr.STEP_WAITING: step.waiting,
            attr.STEP_PREEMPTED: step.preempted,
            **_weight(weight),
        }
        if step.kv_usage_ratio is not None:
            attributes[attr.STEP_KV_USAGE] = step.kv_usage_ratio
        if finished.idle_ns is not None:
            attributes[attr.STEP_IDLE_NS] = finished.idle_ns
        links = [
            Link(_context(change.trace_id, change.key, TraceFlags.SAMPLED, remote=True), {attr.STEP_LINK: change.event})
            for change in finished.changes
        ]
        context = _context(new_trace_id(), new_span_id(), TraceFlags.SAMPLED)
        return self._span(
            "step", context, None, SpanKind.INTERNAL, step.begin_ns, step.end_ns, attributes, Status(), links
        )

    def _request_attributes(self, ledger: Ledger) -> dict[str, Value]:
        request = ledger.request
        attributes: dict[str, Value] = {
            attr.ROLE: attr.ROLE_REQUEST,
            attr.OUTCOME: request.outcome,
            attr.UNATTRIBUTED_NS: ledger.unattributed_ns,
            attr.GEN_AI_LATENCY_E2E: ledger.e2e_ns / 1e9,
        }
        attributes.update(request.attributes)
        if request.http_status:
            attributes[attr.HTTP_STATUS] = request.http_status
        if request.error_type:
            attributes[attr.ERROR_TYPE] = request.error_type
        if ledger.ttft_ns is not None:
            attributes[attr.TTFT_NS] = ledger.ttft_ns
            attributes[attr.GEN_AI_LATENCY_TTFT] = ledger.ttft_ns / 1e9
        if request.queued_ns is not None:
            attributes[attr.GEN_AI_LATENCY_QUEUE] = ledger.wall_ns("queue") / 1e9
        if ledger.engine is not None:
            attributes[attr.ENGINE_ID] = ledger.engine.engine
            attributes[attr.ENGINE_NAME] = ledger.engine.software
            if ledger.engine.model:
                attributes.setdefault(attr.GEN_AI_MODEL, ledger.engine.model)
        return attributes

    def _stage_attributes(self, ledger: Ledger, stage: Interval) -> dict[str, Value]:
        request = ledger.request
        attributes: dict[str, Value] = {attr.ROLE: attr.ROLE_STAGE, attr.STAGE: stage.stage}
        if ledger.model:
            attributes[attr.GEN_AI_MODEL] = ledger.model
        if stage.busy_ns is not None:
            attributes[attr.BUSY_NS] = stage.busy_ns
        if stage.stage in _ENGINE_STAGES and ledger.engine is not None:
            attributes[attr.ENGINE_ID] = ledger.engine.engine
            attributes.update(_step_range(ledger, stage))
        tokens = {"prefill": attr.GEN_AI_INPUT_TOKENS, "decode": attr.GEN_AI_OUTPUT_TOKENS}.get(stage.stage)
        if tokens is not None and tokens in request.attributes:
            attributes[tokens] = request.attributes[tokens]
        if stage.stage == "prefill" and request.prefill_steps:
            attributes[attr.PREFILL_CHUNKS] = request.prefill_steps
        if stage.stage == "decode" and stage is _last(ledger.stages, "decode"):
            encoded = histogram.encode(ledger.gaps_ns)
            if encoded:
                attributes[attr.ITL_HISTOGRAM] = encoded
        return attributes

    def _span(
        self, name: str, context: SpanContext, parent: SpanContext | None, kind: SpanKind, begin_ns: int, end_ns: int,
        attributes: Mapping[str, Value], status: Status, links: Sequence[Link] = (),
    ) -> ReadableSpan:  # fmt: skip
        return ReadableSpan(
            name=name,
            context=context,
            parent=parent,
            resource=self.resource,
            attributes=attributes,
            links=links,
            kind=kind,
            status=status,
            start_time=begin_ns + self.offset_ns,
            end_time=end_ns + self.offset_ns,
            instrumentation_scope=_SCOPE,
        )


def _weight(weight: float) -> dict[str, Value]:
    return {} if weight == 1 else {attr.WEIGHT: weight}


def _step_range(ledger: Ledger, stage: Interval) -> dict[str, Value]:
    numbers = [
        number for number, step in ledger.steps.items() if step.end_ns > stage.begin_ns and step.begin_ns < stage.end_ns
    ]
    return {attr.STEP_FIRST: min(numbers), attr.STEP_LAST: max(numbers)} if numbers else {}


def _last(stages: Iterable[Interval], name: str) -> Interval | None:
    return next((stage for stage in reversed(list(stages)) if stage.stage == name), None)


def _error(request: RequestState) -> Status:
    return Status(StatusCode.ERROR, request.error_type or request.outcome)


def _context(trace_id: int, span_id: int, flags: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=remote, trace_flags=TraceFlags(flags))
