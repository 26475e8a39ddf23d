"""Made-up traffic for exports: engines whose devices and layers are timed, other tracers, aborts, worker events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tests.queries import engine_traffic, traffic

BEGIN_NS = traffic.BEGIN_NS + 123_456_789
MS = 1_000_000
LAYERS = 3
SAMPLED = 10
"""One step in so many has layers."""
EARLY = 7
"""One step in so many has a device time that seems to begin before the one of the step before it ended."""
Sent = tuple[str, str, Span]


@dataclass(frozen=True, slots=True)
class Device:
    """What the device did in one step."""

    kind: str
    begin_ns: int | None
    busy_ns: int
    parts: tuple[str, ...] = ()
    parts_ns: tuple[float, ...] = ()


def engines() -> list[engine_traffic.Engine]:
    """Return three engines after their run: on a GPU, on a CPU with overlapping steps, and one with sampled steps."""
    found = [
        engine_traffic.Engine("engine-a", "llama", 10.0, 21),
        engine_traffic.Engine("engine-b", "qwen", 12.0, 22, overlap_ns=1_500_000),
        engine_traffic.Engine("engine-c", "qwen", 8.0, 23, dropped_ratio=0.4),
    ]
    for engine, requests in zip(found, (40, 25, 25), strict=True):
        engine_traffic.simulate(engine, BEGIN_NS, requests)
    return found


def device_of(step: engine_traffic.Step) -> Device | None:
    """Return what the device did in a step; engine-c was not measured."""
    if step.engine.engine_id == "engine-c":
        return None
    kind = "cuda" if step.engine.engine_id == "engine-a" else "cpu"
    busy_ns = step.wall_ns - 300_000
    begin_ns = step.begin_ns + 100_000 - (1_000_000 if step.number % EARLY == 0 else 0)
    if step.number % 50 == 3:
        return Device(kind, None, busy_ns)
    if step.number % SAMPLED:
        return Device(kind, begin_ns, busy_ns)
    parts = ["embedding"]
    parts += [f"{layer}/{part}" for layer in range(LAYERS) for part in ("norm", "attention", "mlp", "other")]
    parts += ["norm", "lm_head", "sampler", "other"]
    weights = [1.5 + (3.25 * position) % 5 for position in range(len(parts))]
    times = tuple(busy_ns * weight / sum(weights) for weight in weights)
    return Device(kind, begin_ns, busy_ns, tuple(parts), times)


def step_spans(engine: engine_traffic.Engine) -> Iterator[Sent]:
    """Yield the spans of an engine's steps with what its device did."""
    for step, (service, instance, span) in zip(engine.stored, engine_traffic.step_spans(engine), strict=True):
        device = device_of(step)
        if device is not None:
            keys: dict[str, str | int | float | bool] = {
                attributes.DEVICE: device.kind,
                attributes.DEVICE_BUSY_NS: device.busy_ns,
                attributes.DEVICE_UNCERTAINTY_NS: 20_000,
            }
            if device.begin_ns is not None:
                keys[attributes.DEVICE_BEGIN_NS] = device.begin_ns
            if device.kind == "cuda":
                keys |= {attributes.DEVICE_LAUNCH_NS: 250_000, attributes.DEVICE_IDLE_NS: 42_000}
            if device.parts:
                keys |= {attributes.LAYERS_STEPS: SAMPLED, attributes.LAYERS_MODE: "eager"}
                span.attributes.append(array(attributes.LAYERS_PARTS, [AnyValue(string_value=x) for x in device.parts]))
                span.attributes.append(array(attributes.LAYERS_NS, [AnyValue(double_value=x) for x in device.parts_ns]))
            span.attributes.extend(traffic.key_values(keys))
        yield service, instance, span


def array(key: str, values: Sequence[AnyValue]) -> KeyValue:
    """Return an attribute that is a list."""
    return KeyValue(key=key, value=AnyValue(array_value=ArrayValue(values=values)))


def requests(fleet: Sequence[engine_traffic.Engine]) -> list[tuple[engine_traffic.Engine, traffic.Request]]:
    """Return the requests of the engines; every ninth of them was given up."""
    found = []
    for engine in fleet:
        for number, request in enumerate(engine_traffic.requests_of(engine)):
            found.append((engine, replace(request, failed=number % 9 == 4, ttft_ns=request.stages[0].wall_ns + 7 * MS)))
    return found


def aborted() -> tuple[traffic.Request, list[Sent]]:
    """Return a request whose caller left, whose stages stick out of it and into each other, and its spans."""
    request = traffic.Request(
        b"\xde" * 16,
        b"\x0a" * 8,
        BEGIN_NS + 5 * MS,
        "llama",
        "chat",
        "front-0",
        (
            traffic.Stage("receive", 300_001),
            traffic.Stage("queue", 40 * MS),
            traffic.Stage("prefill", 0),
            traffic.Stage("respond", 2 * MS),
        ),
        gap_ns=0,
        input_tokens=17,
    )
    sent = list(traffic.request_spans(request))
    receive, queue, _, respond, root = (span for _, _, span in sent)
    receive.start_time_unix_nano -= 50_000
    queue.start_time_unix_nano -= 70_007
    respond.end_time_unix_nano += 90_000
    (outcome,) = (found for found in root.attributes if found.key == attributes.OUTCOME)
    outcome.value.string_value = "client_disconnect"
    return request, sent


def other_spans(request: traffic.Request) -> list[Sent]:
    """Return what a web shop told of a request's trace: a call, two things in it, and one that outlives it."""
    begin_ns = request.start_ns - 3_000_000_000

    def span(number: int, parent: int, name: str, begin_ms: int, end_ms: int) -> Sent:
        parent_id = bytes([parent] * 8) if parent else b""
        made = traffic.make_span(
            request.trace_id,
            bytes([number] * 8),
            parent_id,
            name,
            begin_ns + begin_ms * MS,
            (end_ms - begin_ms) * MS,
            {"db.system": "postgresql", "retries": 2, "share": 0.5, "cached": False},
        )
        return "shop", "web-1", made

    return [
        span(0x71, 0, "POST /cart", 0, 4000),
        span(0x72, 0x71, "select", 10, 90),
        span(0x73, 0x71, "call model", 90, 3900),
        span(0x74, 0x73, "connect", 90, 95),
        span(0x75, 0x71, "write log", 3800, 4500),
        span(0x76, 0x99, 'of a lost parent \t"x"', 3800, 3801),
    ]


def stalled(fleet: Sequence[engine_traffic.Engine]) -> list[Sent]:
    """Return what is known of a request that a stalled engine still holds: it decodes since step 3."""
    third, ninth = fleet[0].steps[2], fleet[0].steps[8]
    keys: dict[str, str | int | float | bool] = {attributes.ROLE: attributes.ROLE_SNAPSHOT}
    where: dict[str, str | int | float | bool] = {
        attributes.STAGE: "decode",
        attributes.ENGINE_ID: "engine-a",
        attributes.STEP_FIRST: third.number,
        attributes.STEP_LAST: ninth.number,
    }
    trace_id, root, wall_ns = b"\x5a" * 16, b"\x5b" * 8, ninth.end_ns - third.begin_ns
    return [
        ("vllm", "engine-a.host", traffic.make_span(trace_id, root, b"", "POST", third.begin_ns, wall_ns, keys)),
        (
            "vllm",
            "engine-a.host",
            traffic.make_span(trace_id, b"\x5c" * 8, root, "decode", third.begin_ns, wall_ns, keys | where),
        ),
    ]


def engine_traced() -> bytes:
    """Return the message with the one span that an engine told of a request that tailspan did not see."""
    made = traffic.make_span(
        b"\xee" * 16,
        b"\x0e" * 8,
        b"",
        "llm_request",
        BEGIN_NS + 20 * MS,
        950 * MS,
        {
            attributes.GEN_AI_MODEL: "mistral",
            "gen_ai.latency.e2e": 0.9,
            "gen_ai.latency.time_to_first_token": 0.3,
            "gen_ai.latency.time_in_queue": 0.1,
            "gen_ai.latency.time_in_model_prefill": 0.2,
            "gen_ai.latency.time_in_model_decode": 0.6,
        },
    )
    (message,) = traffic.messages([("alone", "alone-0", made)])
    request = ExportTraceServiceRequest.FromString(message)
    request.resource_spans[0].scope_spans[0].scope.name = "vllm.llm_engine"
    return request.SerializeToString()


def events(open_trace_id: bytes) -> list[traffic.Event]:
    """Return a crash, a stall and drops."""
    instance = "engine-a.host"
    return [
        traffic.Event(
            attributes.EVENT_CRASH,
            BEGIN_NS + 1_500 * MS,
            "vllm",
            instance,
            {attributes.WORKER_PID: 77, attributes.WORKER_OPEN_REQUESTS: 2, attributes.ENGINE_ID: "engine-a"},
            (open_trace_id,),
        ),
        traffic.Event(
            attributes.EVENT_STALL, BEGIN_NS + 900 * MS, "vllm", instance, {attributes.STALLED_NS: 31 * 1000 * MS}
        ),
        traffic.Event(
            attributes.EVENT_DROPS, BEGIN_NS + 10 * MS, "vllm", "engine-b.host", {"tailspan.dropped.spans": 3}
        ),
    ]
