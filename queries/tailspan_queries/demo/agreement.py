"""The client's clock held against the traces: is every request there once, and do the times agree?

In:     observations of the client, requests and stages of the traces; joined by trace id and the client's span id.
Out:    `Agreement`.
Units:  nanoseconds; ratios relative to the client's time.

The begin of a trace less the client's send, by the one wall clock of the host, tells how long a request lay in the
socket before the server's program saw it; it is shown because a server's trace cannot know that time by itself.

The network share is stated and not guessed: the TCP handshake of each request's own connection, one round trip that
the kernels answer without the server's program. A request's end-to-end time by the client, less this share, is what the
stages have to explain; what they do not explain (or explain twice) is `unattributed`, as an absolute value so that an
overlap cannot make up for a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tailspan_queries.demo.client import Observation

LIMIT_NS = 5_000_000
LIMIT_RATIO = 0.02
"""A time agrees when it is within either limit."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request span and its stages as (name, begin, wall time)."""

    trace_id: str
    parent_span_id: str
    start_ns: int
    e2e_ns: int
    ttft_ns: int
    status_code: int
    stages: tuple[tuple[str, int, int], ...]

    @property
    def attributed_ns(self) -> int:
        """Sum of the stages' wall times."""
        return sum(wall for _name, _begin, wall in self.stages)

    @property
    def overlap_ns(self) -> int:
        """Time that two stages both claim, plus time that a stage claims outside the request."""
        overlap, reached = 0, self.start_ns
        for _name, begin, wall in sorted(self.stages, key=lambda stage: stage[1]):
            overlap += max(0, min(reached, begin + wall) - begin)
            reached = max(reached, begin + wall)
        return overlap + max(0, reached - (self.start_ns + self.e2e_ns))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far one kind of time of the traces is from the client's."""

    count: int
    difference_ns_p50: float
    difference_ns_p99: float
    difference_ns_max: float
    ratio_p50: float
    ratio_p99: float
    ratio_max: float
    outside: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """The demo's proof, over the requests that succeeded and have exactly one trace."""

    requests: int
    failed: int
    traces: int
    exactly_one_trace: int
    missing: tuple[str, ...]
    doubled: tuple[str, ...]
    strangers: int
    network_ns_p50: float
    unattributed_ratio_p50: float
    unattributed_ratio_p99: float
    overlap_ns_max: int
    begin_ns_p50: float
    begin_ns_max: float
    ttft: Comparison
    e2e: Comparison

    @property
    def holds(self) -> bool:
        """Whether every request has exactly one trace and every time agrees."""
        return self.exactly_one_trace == self.requests and not (self.ttft.outside or self.e2e.outside)

    def as_json(self) -> dict[str, Any]:
        """Return the part of the demo's JSON object that this proof fills."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "traces": self.traces,
            "exactly_one_trace": self.exactly_one_trace,
            "missing_traces": list(self.missing),
            "doubled_traces": list(self.doubled),
            "stranger_traces": self.strangers,
            "network_share_ns_p50": self.network_ns_p50,
            "unattributed_ratio": {"p50": self.unattributed_ratio_p50, "p99": self.unattributed_ratio_p99},
            "stage_overlap_ns_max": self.overlap_ns_max,
            "begin_after_send_ns": {"p50": self.begin_ns_p50, "max": self.begin_ns_max},
            "client_agreement": {
                "ttft_ratio_p99": self.ttft.ratio_p99,
                "e2e_ratio_p99": self.e2e.ratio_p99,
                "limit": {"ns": LIMIT_NS, "ratio": LIMIT_RATIO},
                "holds": self.holds,
                "ttft": asdict(self.ttft),
                "e2e": asdict(self.e2e),
            },
        }


def compare(observations: Sequence[Observation], traced: Iterable[TracedRequest]) -> Agreement:
    """Join both sides and compare their times."""
    by_id: dict[str, list[TracedRequest]] = {}
    for request in traced:
        by_id.setdefault(request.trace_id, []).append(request)
    sent = {observation.trace_id for observation in observations}
    count = Counter({trace_id: len(by_id.get(trace_id, ())) for trace_id in sent})
    pairs = [
        (observation, by_id[observation.trace_id][0])
        for observation in observations
        if count[observation.trace_id] == 1
        and by_id[observation.trace_id][0].parent_span_id == observation.parent_span_id
    ]
    good = [(observation, trace) for observation, trace in pairs if not observation.error]
    rest = [unattributed_ratio(observation, trace) for observation, trace in good]
    begins = [trace.start_ns - observation.sent_unix_ns for observation, trace in good]
    return Agreement(
        requests=len(observations),
        failed=sum(1 for observation in observations if observation.error),
        traces=sum(1 for trace_id in sent if count[trace_id]),
        exactly_one_trace=len(pairs),
        missing=tuple(sorted(trace_id for trace_id in sent if count[trace_id] == 0)),
        doubled=tuple(sorted(trace_id for trace_id in sent if count[trace_id] > 1)),
        strangers=len(by_id.keys() - sent),
        network_ns_p50=percentile([observation.connect_ns for observation, _ in good], 50),
        unattributed_ratio_p50=percentile(rest, 50),
        unattributed_ratio_p99=percentile(rest, 99),
        overlap_ns_max=max((trace.overlap_ns for _, trace in good), default=0),
        begin_ns_p50=percentile(begins, 50),
        begin_ns_max=float(max(begins, default=0)),
        ttft=comparison([(observation.first_content_ns, trace.ttft_ns) for observation, trace in good]),
        e2e=comparison([(observation.last_byte_ns, trace.e2e_ns) for observation, trace in good]),
    )


def unattributed_ratio(observation: Observation, trace: TracedRequest) -> float:
    """Return the share of the client's time, less the network's, that no stage or more than one explains."""
    explained_ns = observation.last_byte_ns - observation.connect_ns
    return abs(explained_ns - trace.attributed_ns) / max(explained_ns, 1)


def comparison(pairs: Sequence[tuple[int, int]]) -> Comparison:
    """Compare (client, trace) times; a client's time that never came (-1) is left out, with the trace's."""
    known = [(client, trace) for client, trace in pairs if client >= 0]
    differences = [abs(client - trace) for client, trace in known]
    ratios = [abs(client - trace) / max(client, 1) for client, trace in known]
    return Comparison(
        count=len(known),
        difference_ns_p50=percentile(differences, 50),
        difference_ns_p99=percentile(differences, 99),
        difference_ns_max=float(max(differences, default=0)),
        ratio_p50=percentile(ratios, 50),
        ratio_p99=percentile(ratios, 99),
        ratio_max=float(max(ratios, default=0.0)),
        outside=sum(1 for ns, ratio in zip(differences, ratios, strict=True) if ns > LIMIT_NS and ratio > LIMIT_RATIO),
    )


def percentile(values: Sequence[float], q: float) -> float:
    """Return a percentile as NumPy interpolates it; 0 of nothing."""
    return float(np.percentile(values, q)) if values else 0.0
