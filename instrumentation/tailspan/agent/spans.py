"""From finished requests and steps to OpenTelemetry spans with explicit times.

All spans of one request use one offset from monotonic to wall time, so a child never begins before its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.sdk.resources import Resource

from tailspan import attributes as attr
from tailspan.agent import histogram
from tailspan.agent.decode import Value
from tailspan.agent.ids import Ids
from tailspan.agent.ledger import Ledger
from tailspan.agent.model import Interval, RequestState
from tailspan.agent.span import Link, Span
from tailspan.agent.step_spans import layer_spans, step_attributes
from tailspan.agent.steps import FinishedStep

_SAMPLED = 1
_TOKENS = {"prefill": attr.GEN_AI_INPUT_TOKENS, "decode": attr.GEN_AI_OUTPUT_TOKENS}
"""What each stage of an engine computes."""
_JOIN_LINKS: dict[str, Mapping[str, Value]] = {event: {attr.STEP_LINK: event} for event in ("join", "leave", "finish")}


class SpanBuilder:
    """Builds the spans of one worker; used by one thread."""

    def __init__(self, resource: Resource, offset_ns: int) -> None:
        """`offset_ns` is wall time less monotonic time."""
        self.resource = resource
        self.offset_ns = offset_ns
        self._ids = Ids()

    def request(self, ledger: Ledger, weight: float = 1.0, *, snapshot: bool = False) -> list[Span]:
        """Return the request span and one child per stage; a snapshot is of a request that goes on."""
        request, resource, offset_ns, stage_id = ledger.request, self.resource, self.offset_ns, self._ids.stage
        extra = _weight(weight) | ({attr.ROLE: attr.ROLE_SNAPSHOT} if snapshot else {})
        trace_id, flags = request.trace_id, request.flags | _SAMPLED
        error = (request.error_type or request.outcome) if ledger.failed else None
        described = _request_attributes(ledger) | extra
        spans = [
            Span(resource, request.name, trace_id, request.key, ledger.begin_ns + offset_ns, ledger.end_ns + offset_ns,
                 described, flags, request.parent_id, True, error)
        ]  # fmt: skip
        last = len(ledger.stages) - 1
        for number, (stage, attributes) in enumerate(zip(ledger.stages, _stages_attributes(ledger), strict=True)):
            if extra:
                attributes.update(extra)
            spans.append(
                Span(resource, stage.stage, trace_id, stage_id(request.key, number), stage.begin_ns + offset_ns,
                     stage.end_ns + offset_ns, attributes, flags, request.key, False, error if number == last else None)
            )  # fmt: skip
        return spans

    def event(
        self, name: str, at_ns: int, attributes: Mapping[str, Value], requests: Iterable[RequestState],
        stages: Mapping[int, str] | None = None,
    ) -> Span:  # fmt: skip
        """Return a span without length for something that happened to the worker, linked to the requests concerned.

        `stages` says by key in which stage they were.
        """
        known = stages or {}
        links = tuple(
            Link(
                request.trace_id, request.key, request.flags,
                {attr.STAGE: known[request.key]} if request.key in known else {},
            )
            for request in requests
        )  # fmt: skip
        at_ns += self.offset_ns
        described = {attr.ROLE: attr.ROLE_EVENT, **attributes}
        return Span(self.resource, name, self._ids.trace(), self._ids.span(), at_ns, at_ns, described,
                    error=name, links=links)  # fmt: skip

    def step(self, finished: FinishedStep, weight: float = 1.0) -> Span:
        """Return the span of one engine step, in a trace of its own."""
        step, offset_ns = finished.step, self.offset_ns
        attributes = step_attributes(finished, offset_ns)
        attributes.update(_weight(weight))
        links = tuple(
            Link(change.trace_id, change.key, _SAMPLED, _JOIN_LINKS[change.event]) for change in finished.changes
        )
        trace_id, span_id = self._ids.step(step.number)
        return Span(self.resource, "step", trace_id, span_id, step.begin_ns + offset_ns, step.end_ns + offset_ns,
                    attributes, links=links)  # fmt: skip

    def layers(self, step: Span, finished: FinishedStep) -> list[Span]:
        """Return the children of a step's span, one for each part of the model that was timed."""
        return list(layer_spans(step, finished, self.offset_ns))


def _request_attributes(ledger: Ledger) -> dict[str, Value]:
    request = ledger.request
    attributes: dict[str, Value] = {
        attr.ROLE: attr.ROLE_REQUEST,
        attr.OUTCOME: request.outcome,
        attr.UNATTRIBUTED_NS: ledger.unattributed_ns,
        attr.GEN_AI_LATENCY_E2E: ledger.e2e_ns / 1e9,
    }
    attributes.update(request.attributes)
    reason = attributes.get(attr.GEN_AI_FINISH_REASONS)
    if isinstance(reason, str):
        attributes[attr.GEN_AI_FINISH_REASONS] = (reason,)
    if request.http_status:
        attributes[attr.HTTP_STATUS] = request.http_status
    if request.error_type:
        attributes[attr.ERROR_TYPE] = request.error_type
    if ledger.ttft_ns is not None:
        attributes[attr.TTFT_NS] = ledger.ttft_ns
        attributes[attr.GEN_AI_LATENCY_TTFT] = ledger.ttft_ns / 1e9
    if (gpu_ns := ledger.request_gpu_ns) is not None:
        attributes[attr.GPU_NS] = gpu_ns
    if request.queued_ns is not None:
        attributes[attr.GEN_AI_LATENCY_QUEUE] = ledger.wall_ns("queue") / 1e9
    if ledger.engine is not None:
        attributes[attr.ENGINE_ID] = ledger.engine.engine
        attributes[attr.ENGINE_NAME] = ledger.engine.software
        if ledger.engine.model:
            attributes.setdefault(attr.GEN_AI_MODEL, ledger.engine.model)
    return attributes


def _stages_attributes(ledger: Ledger) -> list[dict[str, Value]]:
    """Return the attributes of each stage."""
    common: dict[str, Value] = {attr.ROLE: attr.ROLE_STAGE}
    if ledger.model:
        common[attr.GEN_AI_MODEL] = ledger.model
    found = []
    for stage in ledger.stages:
        attributes = {**common, attr.STAGE: stage.stage}
        if stage.busy_ns is not None:
            attributes[attr.BUSY_NS] = stage.busy_ns
        if stage.stage in _TOKENS:
            _add_computed(attributes, ledger, stage)
        found.append(attributes)
    return found


def _add_computed(attributes: dict[str, Value], ledger: Ledger, stage: Interval) -> None:
    """Add what only prefill and decode have: steps and tokens."""
    request = ledger.request
    if ledger.engine is not None:
        attributes[attr.ENGINE_ID] = ledger.engine.engine
        between = ledger.timeline.between(stage.begin_ns, stage.end_ns)
        if between is not None:
            attributes[attr.STEP_FIRST], attributes[attr.STEP_LAST] = between
        if (gpu_ns := ledger.gpu_ns(stage)) is not None:
            attributes[attr.GPU_NS] = gpu_ns
    tokens = _TOKENS[stage.stage]
    if tokens in request.attributes:
        attributes[tokens] = request.attributes[tokens]
    if stage.stage == "prefill":
        if request.prefill_steps:
            attributes[attr.PREFILL_CHUNKS] = request.prefill_steps
        cached = [part.cached_tokens for part in request.memberships if part.join_ns <= stage.begin_ns]
        if cached and cached[-1]:
            attributes[attr.CACHED_TOKENS] = cached[-1]
    elif stage is _last(ledger.stages, "decode") and ledger.gaps_ns:
        attributes[attr.ITL_HISTOGRAM] = histogram.encode(ledger.gaps_ns)


def _weight(weight: float) -> dict[str, Value]:
    return {} if weight == 1 else {attr.WEIGHT: weight}


def _last(stages: tuple[Interval, ...], name: str) -> Interval | None:
    return next((stage for stage in reversed(stages) if stage.stage == name), None)
