"""Made-up traffic with known times: requests as plain records, and the OTLP messages that carry their spans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tailspan import attributes

MINUTE_NS = 60_000_000_000
BEGIN_NS = 1_795_953_600_000_000_000
"""2026-11-29T12:00:00Z"""
SPANS_PER_MESSAGE = 20_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a made-up request."""

    name: str
    wall_ns: int
    busy_ns: int = 0
    gpu_ns: int | None = None
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One made-up request; its stages follow one another, `gap_ns` before the last one is covered by none."""

    trace_id: bytes
    span_id: bytes
    start_ns: int
    model: str
    service: str
    instance: str
    stages: tuple[Stage, ...]
    gap_ns: int
    ttft_ns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    failed: bool = False
    parent_span_id: bytes = b""
    weight: float = 1.0
    engine_id: str = ""

    @property
    def e2e_ns(self) -> int:
        """End-to-end time."""
        return sum(stage.wall_ns for stage in self.stages) + self.gap_ns

    def stage_ns(self, name: str) -> int:
        """Wall time of all spans of a stage."""
        if name == attributes.UNATTRIBUTED:
            return self.gap_ns
        return sum(stage.wall_ns for stage in self.stages if stage.name == name)


@dataclass(frozen=True, slots=True)
class Step:
    """One made-up engine step."""

    number: int
    start_ns: int
    duration_ns: int
    requests: int
    idle_ns: int
    joined: tuple[bytes, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a made-up worker."""

    name: str
    start_ns: int
    service: str
    instance: str
    keys: Mapping[str, str | int | float | bool]
    open_trace_ids: tuple[bytes, ...] = ()


def bursty(count: int, seed: int = 7) -> list[Request]:
    """Return log-normal requests that arrive in bursts over some twenty minutes, for two models."""
    rng = np.random.default_rng(seed)
    # A gamma process with shape 0.1 has a coefficient of variation of 3.2: bursts with long pauses.
    starts = BEGIN_NS + 7_000_000_000 + np.cumsum(rng.gamma(0.1, 20 * MINUTE_NS / count / 0.1, count)).astype(np.int64)
    requests = []
    for number, start in enumerate(starts):
        large = rng.random() < 0.3
        names = {
            "receive": 0.2e6,
            "tokenize": 1.5e6,
            "queue": 400e6,
            "prefill": 120e6,
            "decode": 1_500e6,
            "respond": 0.4e6,
        }
        wall = {name: round(rng.lognormal(math.log(middle), 0.8)) for name, middle in names.items()}
        stages = [
            Stage(
                name,
                ns,
                busy_ns=round(ns * 0.9) if name != "queue" else 0,
                gpu_ns=round(ns * 0.6) if large and name in ("prefill", "decode") else None,
            )
            for name, ns in wall.items()
        ]
        if rng.random() < 0.03:
            stages.insert(5, Stage("preempted", round(rng.lognormal(math.log(250e6), 1.0))))
            stages.insert(6, Stage("decode", round(rng.lognormal(math.log(300e6), 0.5))))
        tokens = int(rng.integers(1, 200))
        requests.append(
            Request(
                trace_id=rng.bytes(16),
                span_id=rng.bytes(8),
                start_ns=int(start),
                model="large" if large else "small",
                service="chat" if number % 3 else "batch",
                instance=f"worker-{number % 2}",
                stages=tuple(stages),
                gap_ns=round(rng.lognormal(math.log(2e6), 1.0)),
                ttft_ns=sum(wall[name] for name in ("receive", "tokenize", "queue", "prefill")),
                input_tokens=int(rng.integers(10, 2000)),
                output_tokens=tokens,
                failed=rng.random() < 0.01,
            )
        )
    return requests


def messages(spans: Iterable[tuple[str, str, Span]]) -> Iterator[bytes]:
    """Pack spans, each with its service and instance, into OTLP export requests."""
    buffered = list(spans)
    for begin in range(0, len(buffered), SPANS_PER_MESSAGE):
        groups: dict[tuple[str, str], list[Span]] = {}
        for service, instance, span in buffered[begin : begin + SPANS_PER_MESSAGE]:
            groups.setdefault((service, instance), []).append(span)
        yield ExportTraceServiceRequest(
            resource_spans=[
                ResourceSpans(
                    resource=Resource(
                        attributes=key_values({attributes.SERVICE_NAME: service, attributes.SERVICE_INSTANCE: instance})
                    ),
                    scope_spans=[ScopeSpans(spans=group)],
                )
                for (service, instance), group in groups.items()
            ]
        ).SerializeToString()


def request_spans(request: Request) -> Iterator[tuple[str, str, Span]]:
    """Yield the spans of a request, its stages first, as an agent may send them."""
    moment = request.start_ns
    for index, stage in enumerate(request.stages):
        if index == len(request.stages) - 1:
            moment += request.gap_ns
        span_id = (int.from_bytes(request.span_id, "big") ^ (index + 1)).to_bytes(8, "big")
        keys: dict[str, str | int | float | bool] = {
            attributes.ROLE: attributes.ROLE_STAGE,
            attributes.STAGE: stage.name,
            attributes.GEN_AI_MODEL: request.model,
            attributes.BUSY_NS: stage.busy_ns,
            **stage.extra,
            **weight_key(request.weight),
        }
        if stage.gpu_ns is not None:
            keys[attributes.GPU_NS] = stage.gpu_ns
        yield (
            request.service,
            request.instance,
            make_span(request.trace_id, span_id, request.span_id, stage.name, moment, stage.wall_ns, keys),
        )
        moment += stage.wall_ns
    keys = {
        attributes.ROLE: attributes.ROLE_REQUEST,
        attributes.GEN_AI_MODEL: request.model,
        attributes.GEN_AI_RESPONSE_ID: f"chatcmpl-{request.span_id.hex()}",
        attributes.GEN_AI_INPUT_TOKENS: request.input_tokens,
        attributes.GEN_AI_OUTPUT_TOKENS: request.output_tokens,
        attributes.UNATTRIBUTED_NS: request.gap_ns,
        attributes.OUTCOME: "error" if request.failed else "ok",
        attributes.HTTP_STATUS: 500 if request.failed else 200,
        **weight_key(request.weight),
    }
    if request.engine_id:
        keys[attributes.ENGINE_ID] = request.engine_id
    if request.ttft_ns:
        keys[attributes.TTFT_NS] = request.ttft_ns
    if request.failed:
        keys[attributes.ERROR_TYPE] = "RuntimeError"
    root = make_span(
        request.trace_id, request.span_id, request.parent_span_id, "POST", request.start_ns, request.e2e_ns, keys
    )
    root.kind = Span.SPAN_KIND_SERVER
    if request.failed:
        root.status.code = 2
        root.status.message = "CUDA out of memory"
    yield request.service, request.instance, root


def step_span(step: Step, engine_id: str) -> tuple[str, str, Span]:
    """Return the span of an engine step, a trace of its own with links to the requests that joined."""
    span = make_span(
        step.number.to_bytes(16, "big"),
        step.number.to_bytes(8, "big"),
        b"",
        "step",
        step.start_ns,
        step.duration_ns,
        {
            attributes.ROLE: attributes.ROLE_STEP,
            attributes.ENGINE_ID: engine_id,
            attributes.STEP_NUMBER: step.number,
            attributes.STEP_REQUESTS: step.requests,
            attributes.STEP_DECODE_TOKENS: step.requests,
            attributes.STEP_PREFILL_TOKENS: 10,
            attributes.STEP_WAITING: 2,
            attributes.STEP_PREEMPTED: 0,
            attributes.STEP_IDLE_NS: step.idle_ns,
            attributes.STEP_KV_USAGE: 0.25,
            **weight_key(step.weight),
        },
    )
    for trace_id in step.joined:
        span.links.add(trace_id=trace_id, span_id=b"\x01" * 8)
    return "chat", "worker-0", span


def event_span(event: Event) -> tuple[str, str, Span]:
    """Return the span of an event, a trace of its own with links to the requests that were under way."""
    trace_id = event.start_ns.to_bytes(16, "big")
    keys = {attributes.ROLE: attributes.ROLE_EVENT, **event.keys}
    span = make_span(trace_id, trace_id[8:], b"", event.name, event.start_ns, 0, keys)
    span.status.code = 2
    for linked in event.open_trace_ids:
        span.links.add(trace_id=linked, span_id=b"\x01" * 8)
    return event.service, event.instance, span


def weight_key(weight: float) -> dict[str, float]:
    """Return the weight as the agent writes it: not at all if it is 1."""
    return {} if weight == 1 else {attributes.WEIGHT: weight}


def make_span(
    trace_id: bytes,
    span_id: bytes,
    parent: bytes,
    name: str,
    start_ns: int,
    duration_ns: int,
    keys: Mapping[str, str | int | float | bool],
) -> Span:
    """Return one OTLP span."""
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + duration_ns,
        attributes=key_values(keys),
    )


def key_values(keys: Mapping[str, str | int | float | bool]) -> list[KeyValue]:
    """Return OTLP attributes with the type that each value has."""
    found = []
    for key, value in keys.items():
        match value:
            case bool():
                any_value = AnyValue(bool_value=value)
            case int():
                any_value = AnyValue(int_value=value)
            case float():
                any_value = AnyValue(double_value=value)
            case str():
                any_value = AnyValue(string_value=value)
        found.append(KeyValue(key=key, value=any_value))
    return found
