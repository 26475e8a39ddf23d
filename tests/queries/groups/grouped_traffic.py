"""Made-up requests over three days, across midnight and the end of summer time, with all that they are grouped by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tailspan import attributes
from tailspan.agent import histogram
from tests.queries import traffic

HOUR_NS = 60 * traffic.MINUTE_NS
DAY_NS = 24 * HOUR_NS
BEGIN_NS = 1_792_800_000_000_000_000
"""2026-10-24T00:00:00Z; in Berlin clocks went from 03:00 back to 02:00 in the night that follows."""
MIDNIGHT_NS = BEGIN_NS + DAY_NS
ENGINES_NS = BEGIN_NS + 10 * DAY_NS
TRACED_NS = BEGIN_NS + 20 * DAY_NS
DEPLOYMENT = "deployment.version"


@dataclass(frozen=True, slots=True)
class Grouped:
    """A made-up request, what its root span says beside, how it ended, and its gaps between tokens in ns."""

    request: traffic.Request
    keys: dict[str, str | int | float | bool] = field(default_factory=dict)
    outcome: str = "ok"
    gaps_ns: tuple[int, ...] = ()

    @property
    def weight(self) -> int:
        """How many requests it stands for."""
        return round(self.request.weight)


def requests(count: int = 3000, seed: int = 5) -> list[Grouped]:
    """Return requests over three days, those after the first day with a weight of 1 or 4, some at the midnights."""
    rng = np.random.default_rng(seed)
    starts = BEGIN_NS + np.sort(rng.integers(0, 3 * DAY_NS - HOUR_NS, count))
    starts[:4] = [MIDNIGHT_NS - 1, MIDNIGHT_NS, MIDNIGHT_NS + DAY_NS - 1, MIDNIGHT_NS + DAY_NS]
    found = []
    for request, start in zip(traffic.bursty(count, seed), starts, strict=True):
        weight = float(rng.choice([1, 4])) if start >= MIDNIGHT_NS else 1.0
        found.append(grouped(replace(request, start_ns=int(start), weight=weight), rng))
    return found


def grouped(request: traffic.Request, rng: np.random.Generator) -> Grouped:
    """Give a request tokens, gaps and attributes; some have no token, one token, or were given up."""
    tokens = int(rng.choice([0, 1, 2, 15, 16, 40, 300], p=[0.05, 0.05, 0.1, 0.2, 0.2, 0.2, 0.2]))
    prompt = int(rng.choice([0, 1, 127, 128, 1000, 1024, 5000], p=[0.05, 0.15, 0.2, 0.2, 0.2, 0.1, 0.1]))
    middle_ns = float(rng.choice([12e6, 25e6, 60e6]))
    gaps = tuple(int(ns) for ns in rng.lognormal(np.log(middle_ns), 0.4, max(tokens - 1, 0)))
    keys: dict[str, str | int | float | bool] = {
        attributes.GEN_AI_STREAM: bool(rng.random() < 0.7),
        "tenant": str(rng.choice(["acme", "globex", "initech"])),
        "retries": int(rng.integers(0, 3)),
        "temperature": float(rng.choice([0.0, 0.7])),
        DEPLOYMENT: "span" if rng.random() < 0.3 else "",
    }
    if priority := int(rng.choice([0, 0, 5, -2])):
        keys[attributes.PRIORITY] = priority
    if rng.random() < 0.4:
        keys[attributes.LORA] = "legal"
    outcome = "error" if request.failed else str(rng.choice(["ok", "ok", "ok", "ok", "ok", "ok", "client_disconnect"]))
    if rng.random() < 0.01:
        outcome = "lost"
    stages = tuple(
        replace(stage, extra={attributes.ITL_HISTOGRAM: histogram.encode(gaps)})
        if gaps and index == last_decode(request)
        else stage
        for index, stage in enumerate(request.stages)
    )
    ttft_ns = request.ttft_ns if tokens else 0
    # Clocks that were set meanwhile: the first token after the end.
    if tokens and rng.random() < 0.02:
        ttft_ns = request.e2e_ns + 5_000_000
    changed = replace(
        request,
        input_tokens=prompt,
        output_tokens=tokens,
        stages=stages,
        ttft_ns=ttft_ns,
        engine_id=f"{request.instance}/0",
    )
    return Grouped(changed, {name: value for name, value in keys.items() if value != ""}, outcome, gaps)


def last_decode(request: traffic.Request) -> int:
    """Return the position of the last decode stage, which holds the gaps."""
    return max(index for index, stage in enumerate(request.stages) if stage.name == "decode")


def spans(item: Grouped) -> Iterator[tuple[str, str, Span]]:
    """Yield the spans of a request; its root has the outcome and the keys."""
    for service, instance, span in traffic.request_spans(item.request):
        if span.span_id == item.request.span_id:
            kept = [entry for entry in span.attributes if entry.key != attributes.OUTCOME]
            del span.attributes[:]
            span.attributes.extend([*kept, *traffic.key_values({attributes.OUTCOME: item.outcome, **item.keys})])
        yield service, instance, span


def bucket_of(tokens: int, lowest: int) -> str:
    """Return the key of a size: the power of two below it, 1 below the lowest, 0 for none."""
    if tokens <= 0:
        return "0"
    return "1" if tokens < lowest else str(2 ** (tokens.bit_length() - 1))


KEYS: dict[str, Callable[[Grouped], str]] = {
    "model": lambda item: item.request.model,
    "service": lambda item: item.request.service,
    "instance": lambda item: item.request.instance,
    "engine": lambda item: item.request.engine_id,
    "priority": lambda item: str(item.keys.get(attributes.PRIORITY, 0)),
    "lora": lambda item: str(item.keys.get(attributes.LORA, "")),
    "stream": lambda item: str(item.keys[attributes.GEN_AI_STREAM]).lower(),
    "prompt": lambda item: bucket_of(item.request.input_tokens, 128),
    "output": lambda item: bucket_of(item.request.output_tokens, 16),
    "attr:tenant": lambda item: str(item.keys["tenant"]),
    "attr:retries": lambda item: str(item.keys["retries"]),
    "attr:temperature": lambda item: f"{item.keys['temperature']:g}",
    f"attr:{DEPLOYMENT}": lambda item: str(item.keys.get(DEPLOYMENT, "")),
    "attr:service.instance.id": lambda item: item.request.instance,
    "attr:gen_ai.request.model": lambda item: item.request.model,
    "": lambda _: "",
}
"""What the groups of each dimension must be."""


def engine_traced() -> bytes:
    """Return a message with two requests that only vLLM's own tracing reported."""
    message = ExportTraceServiceRequest()
    found = []
    for number, (queue_s, prompt) in enumerate(((0.5, 100), (1.5, 200))):
        keys: dict[str, str | int | float | bool] = {
            "gen_ai.request.id": f"cmpl-{number}",
            "gen_ai.response.model": "llama",
            "gen_ai.usage.prompt_tokens": prompt,
            "gen_ai.usage.completion_tokens": 11,
            attributes.GEN_AI_LATENCY_E2E: queue_s + 1.5,
            attributes.GEN_AI_LATENCY_TTFT: queue_s + 0.5,
            attributes.GEN_AI_LATENCY_QUEUE: queue_s,
            "gen_ai.latency.time_in_model_prefill": 0.5,
            "gen_ai.latency.time_in_model_decode": 1.0,
        }
        identity = bytes([number + 1])
        found.append(
            traffic.make_span(identity * 16, identity * 8, b"", "llm_request", TRACED_NS + number, 2_000_000_000, keys)
        )
    resource = Resource(attributes=traffic.key_values({attributes.SERVICE_NAME: "plain"}))
    scope = ScopeSpans(scope=InstrumentationScope(name="vllm.llm_engine"), spans=found)
    message.resource_spans.append(ResourceSpans(resource=resource, scope_spans=[scope]))
    return message.SerializeToString()
