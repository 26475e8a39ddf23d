"""A made-up population of which only some requests keep their spans, and what happened to its workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tailspan import attributes
from tailspan.agent import histogram
from tests.queries import traffic

SLOW = 98
"""Percentile of end-to-end time from which on every request is kept."""
RATIO = 0.1
"""Share of the others that is kept."""


def population(count: int, later_ns: int) -> list[traffic.Request]:
    """Return bursty requests, so much later, whose decode stage has a histogram of gaps between tokens."""
    found = []
    for request in traffic.bursty(count, seed=11):
        stages = tuple(
            replace(stage, extra={attributes.ITL_HISTOGRAM: histogram.encode([gap_ns(request)] * gaps(request))})
            if stage.name == "decode" and gaps(request)
            else stage
            for stage in request.stages
        )
        found.append(
            replace(
                request,
                start_ns=request.start_ns + later_ns,
                service="sampled",
                model=f"sampled-{request.model}",
                stages=stages,
            )
        )
    return found


def gaps(request: traffic.Request) -> int:
    """Return how many gaps between tokens a decode stage of the request has."""
    return request.output_tokens - 1


def gap_ns(request: traffic.Request) -> int:
    """Return how long each of them is."""
    return request.stage_ns("decode") // request.output_tokens


def sample(requests: list[traffic.Request], seed: int = 1) -> list[traffic.Request]:
    """Return the slow and the failed requests, and of the others a share that stands for all of them."""
    rng = np.random.default_rng(seed)
    slow_ns = np.percentile([request.e2e_ns for request in requests], SLOW)
    found = []
    for request in requests:
        if request.failed or request.e2e_ns >= slow_ns:
            found.append(request)
        elif rng.random() < RATIO:
            found.append(replace(request, weight=1 / RATIO))
    return found


def events(begin_ns: int, open_trace_ids: list[bytes]) -> list[traffic.Event]:
    """Return a crash and a stall of `worker-1`, and drops of both workers."""

    def at(second: int, name: str, instance: str, keys: dict[str, int | str], *linked: bytes) -> traffic.Event:
        return traffic.Event(name, begin_ns + second * 1_000_000_000, "sampled", instance, keys, linked)

    return [
        at(
            191,
            attributes.EVENT_CRASH,
            "worker-1",
            {
                attributes.WORKER_PID: 123,
                attributes.WORKER_OPEN_REQUESTS: 4,
                attributes.ENGINE_ID: "engine-1",
                attributes.GEN_AI_MODEL: "sampled-small",
                attributes.STEP_NUMBER: 1204,
                attributes.STEP_REQUESTS: 3,
            },
            *open_trace_ids,
        ),
        at(
            95,
            attributes.EVENT_STALL,
            "worker-1",
            {
                attributes.WORKER_PID: 122,
                attributes.WORKER_OPEN_REQUESTS: 1,
                attributes.STALLED_NS: 31_000_000_000,
                attributes.ENGINE_ID: "engine-0",
                attributes.GEN_AI_MODEL: "sampled-large",
            },
            open_trace_ids[0],
        ),
        at(10, attributes.EVENT_DROPS, "worker-0", {attributes.DROPPED_RECORDS: 1200, attributes.DROPPED_REQUESTS: 2}),
        at(20, attributes.EVENT_DROPS, "worker-0", {attributes.DROPPED_RECORDS: 4, attributes.DROPPED_REQUESTS: 1}),
        at(30, attributes.EVENT_DROPS, "worker-1", {attributes.DROPPED_RECORDS: 0, attributes.DROPPED_SPANS: 1}),
    ]
