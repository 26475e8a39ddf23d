"""All requests of a service as one array of records, and what they are made from.

Out: a structured array, packed and little-endian, so that its bytes are ClickHouse's RowBinary of `COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.traffic import arrivals, fleet, truths
from benchmarks.traffic.arrivals import Arrivals, Floats
from benchmarks.traffic.fleet import FLEET, Service
from benchmarks.traffic.times import MS, STAGES, stage_times
from benchmarks.traffic.truths import PLANTED, Change, Mix, Truth

HOUR_NS = 3_600_000_000_000
BEGIN_NS = 1_795_867_200_000_000_000
"""2026-11-28T12:00:00Z: the middle of 24 hours is a midnight."""
OUTCOMES = ("ok", "error", "client_disconnect")
COLUMNS = (
    ("start_ns", "i8", "Int64"),
    ("worker", "u2", "UInt16"),
    ("input_tokens", "u4", "UInt32"),
    ("output_tokens", "u4", "UInt32"),
    ("cached_tokens", "u4", "UInt32"),
    ("priority", "u1", "UInt8"),
    ("tenant", "u1", "UInt8"),
    ("outcome", "u1", "UInt8"),
    ("batch", "u2", "UInt16"),
    ("gap_ns", "u4", "UInt32"),
    *((f"{stage}_ns", "u8", "UInt64") for stage in STAGES),
)
DTYPE = np.dtype([(name, f"<{kind}") for name, kind, _ in COLUMNS])
_LOW_PRIORITY = 5
_TENANTS = 8


@dataclass(frozen=True, slots=True)
class Traffic:
    """What to make: so many requests over so many hours, with these truths; the same for the same seed."""

    requests: int
    hours: float = 24.0
    planted: tuple[Truth, ...] = PLANTED
    services: tuple[Service, ...] = FLEET
    seed: int = 1
    begin_ns: int = BEGIN_NS

    @property
    def length_s(self) -> float:
        """Time that the arrivals cover."""
        return self.hours * 3600


@dataclass(frozen=True, slots=True)
class Made:
    """Requests of a service in the order of arrival; `records` is of `DTYPE`, its workers count from `first_worker`."""

    service: Service
    records: np.ndarray
    workers: int
    first_worker: int
    planted: tuple[Truth, ...] = field(default=())


def quotas(traffic: Traffic) -> list[int]:
    """Return the requests of each service; together they are all."""
    edges = np.cumsum([0.0, *(service.share for service in traffic.services)])
    return [int(part) for part in np.diff(np.round(edges / edges[-1] * traffic.requests))]


def make(traffic: Traffic) -> Iterator[Made]:
    """Make one service after another.

    Raises: UserError if an arrival trace is absent.
    """
    first_worker = 0
    for number, (service, count) in enumerate(zip(traffic.services, quotas(traffic), strict=True)):
        draw = np.random.default_rng((traffic.seed, number))
        made = make_service(traffic, service, count, first_worker, draw)
        first_worker += made.workers
        yield made


def make_service(traffic: Traffic, service: Service, count: int, first_worker: int, draw: np.random.Generator) -> Made:
    """Make the requests of all workers of a service, then plant its truths."""
    trace = arrivals.load(service.trace)
    planted = truths.of_service(traffic.planted, service.name)
    workers = fleet.worker_count(service, trace, count, traffic.length_s)
    edges = np.linspace(0, count, workers + 1).astype(int)
    parts = []
    for number in range(workers):
        found = arrivals.replay(trace, traffic.length_s, draw)
        wanted = tide(found) * _mix(planted, found)
        found = arrivals.thin_halves(found, int(edges[number + 1] - edges[number]), wanted, draw)
        parts.append(_records(traffic, service, found, trace.rate, first_worker + number, draw))
    records = np.concatenate(parts)
    records = records[np.argsort(records["start_ns"], kind="stable")]
    for truth in planted:
        if isinstance(truth, Change):
            plant(traffic, truth, records, first_worker, draw)
    return Made(service, records, workers, first_worker, planted)


def tide(found: Arrivals) -> Floats:
    """Return how much is asked for at each arrival: two equal tides, so that both halves of the time are alike."""
    weights: Floats = 1 + 0.25 * np.sin(4 * np.pi * found.at_s / found.length_s)
    return weights


def plant(traffic: Traffic, change: Change, records: np.ndarray, first_worker: int, draw: np.random.Generator) -> None:
    """Change the times of a stage in place."""
    in_scope = records["start_ns"] >= traffic.begin_ns + round(change.since * traffic.length_s * 1e9)
    if change.worker is not None:
        in_scope &= records["worker"] == first_worker + change.worker
    if change.priority is not None:
        in_scope &= records["priority"] == change.priority
    column = f"{change.stage}_ns"
    records[column] = change.apply(records[column].astype(np.int64), in_scope, draw)


def _mix(planted: tuple[Truth, ...], found: Arrivals) -> Floats:
    weights = np.ones(len(found.at_s))
    for truth in planted:
        if isinstance(truth, Mix):
            weights *= truth.weights(found.at_s / found.length_s, found.input_tokens, found.output_tokens)
    return weights


def _records(
    traffic: Traffic, service: Service, found: Arrivals, trace_rate: float, worker: int, draw: np.random.Generator
) -> np.ndarray:
    count = len(found.at_s)
    cached = (found.input_tokens * np.where(draw.random(count) < 0.4, draw.beta(2, 2, count), 0.0)).astype(np.int64)
    walls, batch = stage_times(service, found, trace_rate, cached, draw)
    records = np.zeros(count, DTYPE)
    records["start_ns"] = traffic.begin_ns + np.round(found.at_s * 1e9).astype(np.int64)
    records["worker"] = worker
    records["input_tokens"], records["output_tokens"] = found.input_tokens, found.output_tokens
    records["cached_tokens"] = cached
    records["priority"] = np.where(draw.random(count) < service.low_priority_share, _LOW_PRIORITY, 0)
    records["tenant"] = np.minimum(draw.geometric(0.4, count), _TENANTS)
    records["outcome"] = np.searchsorted([0.987, 0.992], draw.random(count), side="right")
    records["batch"] = batch
    records["gap_ns"] = np.round(np.minimum(draw.lognormal(np.log(3.0), 0.8, count), 200.0) * MS)
    for stage in STAGES:
        records[f"{stage}_ns"] = walls[stage]
    _cut(records, draw)
    return records


def _cut(records: np.ndarray, draw: np.random.Generator) -> None:
    """End those that did not end well early: half of them without a token, the others in the middle of decoding."""
    unwell = records["outcome"] > 0
    empty = unwell & (draw.random(len(records)) < 0.5)
    for stage in ("prefill", "decode", "preempted", "resumed", "detokenize"):
        records[f"{stage}_ns"][empty] = 0
    records["output_tokens"][empty] = 0
    halved = unwell & ~empty
    for name in ("decode_ns", "resumed_ns"):
        records[name][halved] //= 2
    records["output_tokens"][halved] = (records["output_tokens"][halved] + 1) // 2
