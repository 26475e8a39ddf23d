"""Made-up traffic with planted truths: a worker that is slow now and then, a starved class, none at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tailspan import attributes
from tailspan_queries.times import Window
from tests.queries import traffic

HOUR_NS = 60 * traffic.MINUTE_NS
BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Labelled:
    """One request and the attributes of its span beyond the usual ones."""

    request: traffic.Request
    keys: Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class Overlapping:
    """A request whose stages overlap: name, begin after that of the request, wall time."""

    trace_id: bytes
    start_ns: int
    e2e_ns: int
    stages: tuple[tuple[str, int, int], ...]


def window(hour: int) -> Window:
    """Return one of the hours that the sets of requests are in."""
    return Window(traffic.BEGIN_NS + hour * HOUR_NS, traffic.BEGIN_NS + (hour + 1) * HOUR_NS)


def requests(count: int, hour: int, seed: int, slow_worker: str = "", slow_ratio: float = 0.02) -> list[Labelled]:
    """Return requests of four workers; every `1 / slow_ratio`th of `slow_worker`, by chance, is slow in its prefill."""
    rng = np.random.default_rng(seed)
    starts = np.sort(rng.uniform(0, 0.98 * HOUR_NS, count)).astype(np.int64) + window(hour).since_ns
    found = []
    for start in starts:
        worker = int(rng.integers(4))
        middles = {"queue": 80e6, "prefill": 120e6, "decode": 900e6, "respond": 0.4e6}
        wall = {name: round(rng.lognormal(np.log(middle), 0.5)) for name, middle in middles.items()}
        if f"worker-{worker}" == slow_worker and rng.random() < slow_ratio:
            wall["prefill"] += round(rng.uniform(8e9, 12e9))
        extra: dict[str, int] = {attributes.PREFILL_CHUNKS: int(rng.integers(1, 3))}
        if rng.random() < 0.5:
            extra[attributes.CACHED_TOKENS] = 16
        stages = tuple(traffic.Stage(name, ns, extra=extra if name == "prefill" else {}) for name, ns in wall.items())
        request = traffic.Request(
            trace_id=rng.bytes(16),
            span_id=rng.bytes(8),
            start_ns=int(start),
            model=("small", "large")[int(rng.integers(2))],
            service="chat",
            instance=f"worker-{worker}",
            stages=stages,
            gap_ns=1_000_000,
            input_tokens=int(rng.lognormal(6, 1)),
            output_tokens=int(rng.integers(0, 200)),
            engine_id=f"engine-{worker}",
        )
        keys: dict[str, str | int | bool] = {attributes.GEN_AI_STREAM: bool(rng.random() < 0.5)}
        keys["app.user"] = rng.bytes(8).hex()
        keys["app.tenant"] = f"tenant-{int(rng.integers(6))}"
        if rng.random() < 0.1:
            keys[attributes.PRIORITY] = 5
        found.append(Labelled(request, keys))
    return found


def sampled(items: Sequence[Labelled], every: int, seed: int) -> list[Labelled]:
    """Return the slowest twentieth of requests, and of the others one in `every`, which stands for as many."""
    rng = np.random.default_rng(seed)
    bound = np.percentile([item.request.e2e_ns for item in items], 95)
    kept = []
    for item in items:
        if item.request.e2e_ns >= bound:
            kept.append(item)
        elif rng.random() < 1 / every:
            kept.append(Labelled(replace(item.request, weight=float(every)), item.keys))
    return kept


def starving(count: int, hour: int, seed: int, factor: float) -> list[Labelled]:
    """Return requests of priorities 0, 1 and 9; in the second half 9 waits `factor` times as long, others less."""
    rng = np.random.default_rng(seed)
    middle = window(hour).since_ns + HOUR_NS // 2
    found = []
    for item in requests(count, hour, seed):
        priority = int(rng.choice([0, 1, 9], p=[0.7, 0.2, 0.1]))
        late = item.request.start_ns >= middle
        pace = 1.0 if not late or factor == 1 else factor if priority == 9 else 0.6
        stages = tuple(
            replace(stage, wall_ns=round(stage.wall_ns * pace)) if stage.name == "queue" else stage
            for stage in item.request.stages
        )
        found.append(
            Labelled(replace(item.request, stages=stages), {attributes.PRIORITY: priority} if priority else {})
        )
    return found


def overlapping(count: int, hour: int, seed: int) -> list[Overlapping]:
    """Return requests whose stages overlap each other and reach beyond the request."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        e2e = int(rng.integers(100, 1000)) * 1_000_000
        stages = tuple(
            (name, int(rng.integers(-50, 900)) * 1_000_000, int(rng.integers(1, 500)) * 1_000_000)
            for name in ("queue", "prefill", "decode", "decode", "respond")
        )
        found.append(Overlapping(rng.bytes(16), window(hour).since_ns + number * 1_000_000_000, e2e, stages))
    return found


def spans(items: Sequence[Labelled]) -> Iterator[tuple[str, str, Span]]:
    """Yield the spans of requests, with the attributes that they have beyond the usual ones."""
    for item in items:
        for service, instance, span in traffic.request_spans(item.request):
            if span.span_id == item.request.span_id:
                span.attributes.extend(traffic.key_values(item.keys))
            yield service, instance, span


def overlapping_spans(items: Sequence[Overlapping]) -> Iterator[tuple[str, str, Span]]:
    """Yield the spans of requests whose stages overlap."""
    for item in items:
        root = item.trace_id[:8]
        keys = {attributes.ROLE: attributes.ROLE_REQUEST}
        yield "chat", "w", traffic.make_span(item.trace_id, root, b"", "POST", item.start_ns, item.e2e_ns, keys)
        for number, (name, offset, wall) in enumerate(item.stages):
            span_id = (int.from_bytes(root, "big") ^ (number + 1)).to_bytes(8, "big")
            keys = {attributes.ROLE: attributes.ROLE_STAGE, attributes.STAGE: name}
            yield "chat", "w", traffic.make_span(item.trace_id, span_id, root, name, item.start_ns + offset, wall, keys)


def engine_message(count: int, hour: int, seed: int) -> tuple[bytes, list[dict[str, float]]]:
    """Return spans of vLLM's own tracing, and for each request its times in seconds by the name of the stage."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, float]] = []
    group = []
    for number in range(count):
        times = {name: round(float(rng.lognormal(-1, 0.7)), 6) for name in ("queue", "prefill", "decode")}
        times["e2e"] = sum(times.values()) + 0.01
        found.append(times)
        start = window(hour).since_ns + number * 1_000_000_000
        span = traffic.make_span(rng.bytes(16), rng.bytes(8), b"", "llm_request", start, round(times["e2e"] * 1e9), {})
        keys: dict[str, str | int | float | bool] = {
            "gen_ai.request.model": "engine-model",
            "gen_ai.latency.time_in_queue": times["queue"],
            "gen_ai.latency.time_in_model_prefill": times["prefill"],
            "gen_ai.latency.time_in_model_decode": times["decode"],
            "gen_ai.latency.time_to_first_token": times["queue"] + times["prefill"],
            "gen_ai.latency.e2e": times["e2e"],
        }
        span.attributes.extend(traffic.key_values(keys))
        group.append(span)
    resource = Resource(attributes=traffic.key_values({attributes.SERVICE_NAME: "engine"}))
    scope = ScopeSpans(scope=InstrumentationScope(name="vllm.llm_engine"), spans=group)
    return (
        ExportTraceServiceRequest(
            resource_spans=[ResourceSpans(resource=resource, scope_spans=[scope])]
        ).SerializeToString(),
        found,
    )


def labels_of(items: Sequence[Labelled]) -> dict[str, list[str]]:
    """Return what the query must find for each request, the empty text where it has no such attribute."""
    found: dict[str, list[str]] = {}
    for item in items:
        request, keys = item.request, item.keys
        prefill = next(stage for stage in request.stages if stage.name == "prefill")
        values = {
            attributes.GEN_AI_MODEL: request.model,
            attributes.SERVICE_INSTANCE: request.instance,
            attributes.ENGINE_ID: request.engine_id,
            attributes.PRIORITY: str(keys.get(attributes.PRIORITY, 0)),
            attributes.GEN_AI_STREAM: str(keys[attributes.GEN_AI_STREAM]).lower(),
            "app.tenant": str(keys["app.tenant"]),
            "chunked": "yes" if int(prefill.extra[attributes.PREFILL_CHUNKS]) > 1 else "no",
            "cached": "yes" if prefill.extra.get(attributes.CACHED_TOKENS) else "no",
            attributes.GEN_AI_INPUT_TOKENS: power_of_two(request.input_tokens),
            attributes.GEN_AI_OUTPUT_TOKENS: power_of_two(request.output_tokens),
        }
        for key, value in values.items():
            found.setdefault(key, []).append(value)
    return found


def power_of_two(number: int) -> str:
    """Return the largest power of two that is not larger, 0 for 0."""
    return str(1 << (number.bit_length() - 1)) if number else "0"


def rows_of(
    labels: Mapping[str, Sequence[str]],
    e2e: npt.NDArray[np.float64],
    slowest: float,
    weights: npt.NDArray[np.float64] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of query `different` over requests in the order of time, without stages, computed with NumPy."""
    weight = np.ones(len(e2e)) if weights is None else weights
    threshold = np.quantile(np.repeat(e2e, weight.astype(int)), 1 - slowest)
    slow = e2e >= threshold
    begins = np.arange(1, BLOCKS) * len(e2e) // BLOCKS
    block = np.searchsorted(begins, np.arange(len(e2e)), side="right")
    numbers = np.full(len(e2e), -1)
    order = np.random.default_rng(1).permutation(len(e2e))
    for hit, limit, first in ((True, 1000, 0), (False, 3000, 1)):
        chosen = order[slow[order] == hit][:limit]
        numbers[chosen] = first + 2 * np.arange(len(chosen))
    rows = []
    for attribute, held in (("", [""] * len(e2e)), *labels.items()):
        values, codes = np.unique(held, return_inverse=True)
        for code, value in enumerate(values.tolist()):
            inside = codes == code
            if attribute and not value:
                continue
            rows.append(
                {
                    "attribute": attribute,
                    "value": value,
                    "kept_requests": int(inside.sum()),
                    "kept_slow": int((inside & slow).sum()),
                    "requests": weight[inside].sum(),
                    "slow_requests": weight[inside & slow].sum(),
                    "squared_weight": (weight[inside] ** 2).sum(),
                    "threshold_ns": threshold,
                    "block_requests": np.bincount(block[inside], weight[inside], BLOCKS).tolist(),
                    "block_slow": np.bincount(block[inside & slow], weight[inside & slow], BLOCKS).tolist(),
                    **dict.fromkeys(("stages", "stage_sum_ns", "slow_sum_ns"), ()),
                    "members": sorted(numbers[inside & (numbers >= 0)].tolist()),
                }
            )
    return rows
