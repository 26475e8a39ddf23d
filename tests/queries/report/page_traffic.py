"""An incident: a version that makes requests wait, and the change that ended it; and names that try to break a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tailspan import attributes
from tailspan.agent import histogram
from tailspan_queries.optimizations_records import Claim, Cost, Optimization
from tailspan_queries.times import Window
from tests.queries import engine_traffic, layer_traffic, ledger_traffic, traffic
from tests.queries.traffic import BEGIN_NS, MINUTE_NS

REQUESTS = 1500
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
WINDOW = Window(BEGIN_NS, BEGIN_NS + HOUR_NS)
DAY_BEFORE = Window(BEGIN_NS - DAY_NS, BEGIN_NS - DAY_NS + HOUR_NS)
HOSTILE = Window(BEGIN_NS + 2 * DAY_NS, BEGIN_NS + 2 * DAY_NS + HOUR_NS)
LONE = Window(BEGIN_NS + 4 * DAY_NS + 5 * HOUR_NS, BEGIN_NS + 4 * DAY_NS + 6 * HOUR_NS)
EMPTY = Window(BEGIN_NS + 6 * DAY_NS, BEGIN_NS + 6 * DAY_NS + HOUR_NS)
DEPLOYED_NS, MENDED_NS = BEGIN_NS + 21 * MINUTE_NS, BEGIN_NS + 41 * MINUTE_NS
VERSION = "service.version"
SCRIPT = "<script>alert('x')</script>"
IMAGE = "\"><img src='https://example.invalid/x.png' onerror=alert(1)>"
CLOSING = "</style></title></svg><script>fetch('//example.invalid')</script>"
ENTRIES = (
    Optimization(
        "0f" * 16,
        "smaller batches for long prompts",
        "queue",
        before=Window(DEPLOYED_NS, MENDED_NS),
        after=Window(MENDED_NS, WINDOW.until_ns),
        cost=Cost("8 % fewer tokens a second", 2**31, 0.0),
    ),
    Optimization("1f" * 16, CLOSING, "prefill", claim=Claim(4e8, 3e8), source=SCRIPT, cost=Cost(IMAGE)),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request with its version, and attributes of its span."""

    request: traffic.Request
    version: str
    keys: dict[str, str]


def incident(window: Window, count: int, seed: int, *, broken: bool) -> list[Sent]:
    """Return requests of an hour; if it is broken, those between the two versions wait long, longest on one worker."""
    rng = np.random.default_rng(seed)
    starts = np.sort(rng.integers(window.since_ns, window.until_ns, count))
    return [one(rng, int(start), int(start) - window.since_ns, broken=broken) for start in starts]


def one(rng: np.random.Generator, start_ns: int, offset_ns: int, *, broken: bool) -> Sent:
    """Return one request."""
    minute = offset_ns / MINUTE_NS
    waits = broken and 21 <= minute < 41
    worker = int(rng.integers(3))
    prompt, tokens = int(rng.lognormal(6.3, 0.9)), int(rng.integers(2, 260))
    pressure = (8 + 14 * math.sin((minute - 21) / 20 * math.pi)) * (2.5 if worker == 2 else 1) if waits else 1.0
    gaps = [round(gap) for gap in rng.lognormal(math.log(18e6), 0.35, tokens - 1)]
    wall = {
        "receive": rng.lognormal(math.log(0.3e6), 0.5),
        "tokenize": prompt * rng.lognormal(math.log(3e3), 0.3),
        "dispatch": rng.lognormal(math.log(0.6e6), 0.4),
        "queue": rng.lognormal(math.log(90e6), 0.9) * pressure,
        "prefill": prompt * rng.lognormal(math.log(2.2e5), 0.3),
        "decode": float(sum(gaps)),
        "detokenize": tokens * 4e4,
        "respond": rng.lognormal(math.log(0.5e6), 0.5),
    }
    extra = {"decode": {attributes.ITL_HISTOGRAM: histogram.encode(gaps)}}
    stages = [traffic.Stage(name, round(ns), round(ns * 0.8), extra=extra.get(name, {})) for name, ns in wall.items()]
    if waits and rng.random() < 0.12:
        stages.insert(5, traffic.Stage("preempted", round(rng.lognormal(math.log(600e6), 0.6))))
        stages.insert(5, traffic.Stage("decode", round(rng.lognormal(math.log(300e6), 0.4))))
    version = "1.8.3" if minute < 21 or not broken else "1.9.0" if minute < 41 else "1.9.1"
    request = traffic.Request(
        trace_id=rng.bytes(16),
        span_id=rng.bytes(8),
        start_ns=start_ns,
        model="llama-6" if rng.random() < 0.7 else "qwen-small",
        service="chat",
        instance=f"worker-{worker}",
        stages=tuple(stages),
        gap_ns=round(rng.lognormal(math.log(2e6), 0.6)),
        ttft_ns=round(sum(wall[name] for name in ("receive", "tokenize", "dispatch", "queue", "prefill"))),
        input_tokens=prompt,
        output_tokens=tokens,
        failed=bool(rng.random() < (0.05 if waits else 0.004)),
    )
    return Sent(request, version, {"app.tenant": f"tenant-{int(rng.integers(6))}"})


def hostile(count: int = 900) -> list[Sent]:
    """Return requests whose every name is markup; those of one tenant are slow."""
    found = []
    for number, item in enumerate(incident(HOSTILE, count, 23, broken=False)):
        slow = number % 30 == 7
        stages = (*item.request.stages, traffic.Stage(CLOSING, 9_000_000_000 if slow else 1_000_000))
        names = {"service": SCRIPT, "model": IMAGE, "instance": CLOSING, "stages": stages}
        keys = {"app.tenant": SCRIPT if slow else "tenant-1"}
        found.append(Sent(replace(item.request, **names), SCRIPT if number < count / 2 else CLOSING, keys))
    return found


def lone() -> list[Sent]:
    """Return one request with one stage, without tokens, model or version."""
    queue = (traffic.Stage("queue", 5_000_000),)
    return [Sent(traffic.Request(b"\x07" * 16, b"\x07" * 8, LONE.since_ns, "", "chat", "", queue, 0), "", {})]


def engine() -> layer_traffic.LayeredEngine:
    """Return an engine with a slow layer, in the window."""
    device = layer_traffic.Device(slower={"2/attention": 1.5})
    return layer_traffic.layered(engine_traffic.Engine("gpu-a", "llama-6", 10.0, 11), device, BEGIN_NS + MINUTE_NS, 160)


def messages(items: Iterable[Sent]) -> Iterator[bytes]:
    """Pack the spans of requests with their resources into OTLP export requests."""
    groups: dict[tuple[str, str, str], list[Span]] = {}
    for item in items:
        for service, instance, span in traffic.request_spans(item.request):
            if span.span_id == item.request.span_id:
                span.attributes.extend(traffic.key_values(item.keys))
            groups.setdefault((service, instance, item.version), []).append(span)
    for (service, instance, version), spans in groups.items():
        keys = {attributes.SERVICE_NAME: service, attributes.SERVICE_INSTANCE: instance}
        keys |= {VERSION: version} if version else {}
        resource = Resource(attributes=traffic.key_values(keys))
        message = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=spans)])
        yield ExportTraceServiceRequest(resource_spans=[message]).SerializeToString()


def other_spans() -> list[tuple[str, str, Span]]:
    """Return the spans of the engine's steps and of the ledger."""
    entries = [ledger_traffic.entry_span(item, BEGIN_NS, 1 + place) for place, item in enumerate(ENTRIES)]
    return [*layer_traffic.spans_of(engine()), *entries]
