"""Made-up requests before and after a change whose truth is known, as spans and as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tailspan import attributes
from tailspan_queries.compare_records import Group, Part, Sample
from tailspan_queries.times import Window
from tests.queries import traffic

HOUR_NS = 60 * traffic.MINUTE_NS
STAGES = ("receive", "queue", "prefill", "decode", "respond")


@dataclass(frozen=True, slots=True)
class Truth:
    """What one side's requests are like; times in ns, tokens as counts.

    `factors` multiply stages; the slowest part `slow_ratio` of requests waits `slow_factor` times as long in the queue.
    """

    count: int = 2000
    output_median: float = 150.0
    factors: Mapping[str, float] = field(default_factory=dict)
    slow_ratio: float = 0.0
    slow_factor: float = 1.0
    swing: float = 0.03
    """Standard deviation of what all requests of a minute share, in logarithm."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests (n,) that began within an hour, with the wall time of each stage in ns."""

    start_ns: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    wall_ns: Mapping[str, NDArray[np.int64]]
    weights: NDArray[np.float64]

    @property
    def e2e_ns(self) -> NDArray[np.int64]:
        """End-to-end times."""
        return np.sum(list(self.wall_ns.values()), axis=0, dtype=np.int64)

    @property
    def ttft_ns(self) -> NDArray[np.int64]:
        """Times to first token."""
        return self.wall_ns["receive"] + self.wall_ns["queue"] + self.wall_ns["prefill"]


def make(truth: Truth, begin_ns: int, seed: int, duration_ns: int = HOUR_NS) -> Traffic:
    """Return requests spread over a time from `begin_ns` on."""
    random = np.random.default_rng(seed)
    count = truth.count
    offsets = np.sort(random.integers(0, duration_ns, count))
    minutes = offsets * 60 // duration_ns
    shared = np.exp(random.normal(0, truth.swing, 60))[minutes]
    prompts = np.maximum(random.lognormal(np.log(800), 0.8, count), 1).astype(np.int64)
    outputs = np.maximum(random.lognormal(np.log(truth.output_median), 0.7, count), 1).astype(np.int64)
    queue = 80e6 * random.lognormal(0, 0.6, count) * shared
    slow = random.random(count) < truth.slow_ratio
    times = {
        "receive": 3e5 * random.lognormal(0, 0.3, count),
        "queue": np.where(slow, queue * truth.slow_factor, queue),
        "prefill": 2e7 + prompts * 6e4 * shared,
        "decode": outputs * 12e6 * shared * random.lognormal(0, 0.05, count),
        "respond": 2e5 * random.lognormal(0, 0.3, count),
    }
    walls = {name: np.rint(ns * truth.factors.get(name, 1.0)).astype(np.int64) for name, ns in times.items()}
    return Traffic(begin_ns + offsets, prompts, outputs, walls, np.ones(count))


def spans(
    items: Traffic, seed: int, keys: Mapping[str, str | int] | None = None, id_prefix: bytes = b""
) -> Iterator[Span]:
    """Yield the spans of the requests; `keys` are attributes of the request's span, trace ids begin with a prefix."""
    random = np.random.default_rng(seed)
    e2e_ns, ttft_ns = items.e2e_ns, items.ttft_ns
    for number, start in enumerate(items.start_ns.tolist()):
        trace_id, root_id = (id_prefix + random.bytes(16))[:16], random.bytes(8)
        weight = traffic.weight_key(float(items.weights[number]))
        moment = start
        for index, (name, walls) in enumerate(items.wall_ns.items()):
            span_id = (int.from_bytes(root_id, "big") ^ (index + 1)).to_bytes(8, "big")
            stage: dict[str, str | int | float | bool] = {
                attributes.ROLE: attributes.ROLE_STAGE,
                attributes.STAGE: name,
                **weight,
            }
            yield traffic.make_span(trace_id, span_id, root_id, name, moment, int(walls[number]), stage)
            moment += int(walls[number])
        request: dict[str, str | int | float | bool] = {
            attributes.ROLE: attributes.ROLE_REQUEST,
            attributes.GEN_AI_INPUT_TOKENS: int(items.input_tokens[number]),
            attributes.GEN_AI_OUTPUT_TOKENS: int(items.output_tokens[number]),
            attributes.TTFT_NS: int(ttft_ns[number]),
            **weight,
            **(keys or {}),
        }
        yield traffic.make_span(trace_id, root_id, b"", "POST", start, int(e2e_ns[number]), request)


def message(found: Sequence[Span], resource: Mapping[str, str | int]) -> bytes:
    """Pack spans of one resource into an OTLP export request."""
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=traffic.key_values(resource)), scope_spans=[ScopeSpans(spans=found)]
            )
        ]
    ).SerializeToString()


def sample(items: Traffic, begin_ns: int, duration_ns: int = HOUR_NS, blocks: int = 30) -> Sample:
    """Return the requests as a comparison reads them."""
    block_ns = duration_ns // blocks
    everyone = np.arange(len(items.start_ns))
    e2e_ns = items.e2e_ns
    walls = {**items.wall_ns, "ttft": items.ttft_ns, "request": e2e_ns, "unattributed": e2e_ns * 0}
    return Sample(
        group=Group((Window(begin_ns, begin_ns + duration_ns),)),
        blocks=(items.start_ns - begin_ns) // block_ns,
        block_count=blocks,
        block_ns=block_ns,
        weights=items.weights,
        input_tokens=items.input_tokens,
        output_tokens=items.output_tokens,
        failed=np.zeros(len(everyone), np.int64),
        parts={name: Part(everyone, wall_ns.astype(np.float64)) for name, wall_ns in walls.items()},
        kept_ratio=1.0,
    )
