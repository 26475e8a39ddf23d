"""Made-up traffic of a server that is tuned in two steps, and the spans of ledger entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tailspan_queries.optimizations_records import Optimization
from tailspan_queries.optimizations_store import SERVICE, to_attributes
from tailspan_queries.times import Window
from tests.queries import traffic

MS = 1_000_000
EXAMPLE = Optimization(
    "0e" * 16,
    "priority scheduling",
    "queue",
    before=Window(traffic.BEGIN_NS, traffic.BEGIN_NS + 5 * traffic.MINUTE_NS),
    after=Window(traffic.BEGIN_NS + 5 * traffic.MINUTE_NS, traffic.BEGIN_NS + 10 * traffic.MINUTE_NS),
)
"""An entry of the ledger, for queries that list it."""


def served(window: Window, count: int, seed: int, *, queue_ms: float, decode_ms: float) -> list[traffic.Request]:
    """Return requests that begin evenly over a window; a fifth of them stands for three, one in ten has no `tls`."""
    rng = np.random.default_rng(seed)
    starts = np.sort(rng.integers(window.since_ns, window.until_ns, count))
    starts[0], starts[-1] = window.since_ns, window.until_ns - 1
    middles = {"tls": 3.0, "tokenize": 2.0, "queue": queue_ms, "prefill": 90.0, "decode": decode_ms}
    requests = []
    for start in starts:
        wall = {name: round(rng.lognormal(math.log(ms * MS), 0.5)) for name, ms in middles.items()}
        if rng.random() < 0.9:
            del wall["tls"]
        requests.append(
            traffic.Request(
                trace_id=rng.bytes(16),
                span_id=rng.bytes(8),
                start_ns=int(start),
                model="small" if rng.random() < 0.5 else "large",
                service="chat",
                instance="worker-0",
                stages=tuple(traffic.Stage(name, ns) for name, ns in wall.items()),
                gap_ns=round(rng.lognormal(math.log(MS), 0.5)),
                input_tokens=100,
                output_tokens=10,
                weight=3.0 if rng.random() < 0.2 else 1.0,
            )
        )
    return requests


def mean_ns(requests: Sequence[traffic.Request], stage: str) -> float:
    """Return the weighted mean of a stage over all requests; `request` is end-to-end."""
    times = np.array([item.e2e_ns if stage == "request" else item.stage_ns(stage) for item in requests], dtype=float)
    return float(np.average(times, weights=[item.weight for item in requests]))


def tail_of(requests: Sequence[traffic.Request], kept: Sequence[int]) -> list[traffic.Request]:
    """Return the requests from the p99 of end-to-end time on, each repeated by its whole weight `kept`."""
    e2e = np.array([item.e2e_ns for item in requests])
    threshold = np.percentile(np.repeat(e2e, kept), 99)
    return [item for item in requests if item.e2e_ns >= threshold]


def entry_span(item: Optimization, moment_ns: int, span_id: int) -> tuple[str, str, Span]:
    """Return the span that writes a state of an entry."""
    span = traffic.make_span(
        bytes.fromhex(item.id),
        span_id.to_bytes(8, "big"),
        b"",
        attributes.ROLE_OPTIMIZATION,
        moment_ns,
        0,
        to_attributes(item),
    )
    return SERVICE, "", span
