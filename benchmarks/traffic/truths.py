"""What is planted in the traffic, each in a service of its own, so that the commands can be judged by it.

A truth either changes times (`Change`) or which requests come (`Mix`). Everything but `slow-worker` begins at the
middle of the time (`SINCE`), so that the halves before and after have equally many requests, hours and tides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.traffic.arrivals import Floats, Ints

SINCE = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """A stage of a service takes another time.

    `factors` multiply the stage's time; `at` are the quantiles of the service's times at which they hold, with a line
    between them, so that a tail can move while the middle stays. A non-decreasing `factors` keeps the order of times,
    and so percentile q moves by exactly the factor at q. `add_ms` is the median of a log-normal time on top. Both go to
    a share of the requests in scope: of `worker` and `priority` where given, from `since` (part of the whole time) on.
    """

    name: str
    text: str
    service: str
    stage: str
    at: tuple[float, ...] = (0.5,)
    factors: tuple[float, ...] = (1.0,)
    add_ms: float = 0.0
    since: float = SINCE
    share: float = 1.0
    worker: int | None = None
    priority: int | None = None

    def apply(self, wall_ns: Ints, in_scope: np.ndarray, draw: np.random.Generator) -> Ints:
        """Return the changed times; `wall_ns` and the mask `in_scope` have one entry a request of the service."""
        chosen = np.flatnonzero(in_scope & (wall_ns > 0))
        if self.share < 1:
            chosen = chosen[draw.random(len(chosen)) < self.share]
        changed = wall_ns.copy()
        knots = np.quantile(wall_ns[wall_ns > 0], self.at)
        old = wall_ns[chosen].astype(np.float64)
        added = draw.lognormal(np.log(self.add_ms * 1e6), 0.2, len(chosen)) if self.add_ms else 0.0
        changed[chosen] = np.round(old * np.interp(old, knots, self.factors) + added)
        return changed


@dataclass(frozen=True, slots=True)
class Mix:
    """From `since` on, requests with longer prompts or outputs come more often; the times of each stay what they were.

    The rate stays, and so does the load: nothing but the mix moves the percentiles.
    """

    name: str
    text: str
    service: str
    above: float = 0.7
    factor: float = 3.0
    since: float = SINCE

    def weights(self, at_ratio: Floats, input_tokens: Ints, output_tokens: Ints) -> Floats:
        """Return how often each request is wanted, with the same sum in both times, if both have equally many."""
        longer = (input_tokens > np.quantile(input_tokens, self.above)) | (
            output_tokens > np.quantile(output_tokens, self.above)
        )
        after = at_ratio >= self.since
        weights = np.where(after & longer, self.factor, 1.0)
        weights[after] /= weights[after].mean()
        return weights


Truth = Change | Mix
PLANTED: tuple[Truth, ...] = (
    Change(
        "slow-worker", "2 % of the requests of worker 0 tokenize some 20 s longer, all the time", "chat", "tokenize",
        add_ms=20_000, since=0.0, share=0.02, worker=0,
    ),
    Change(
        "tail-worse", "the faster half of decode becomes 25 % faster, its P99 40 % slower", "assistant", "decode",
        at=(0.5, 0.9, 0.99), factors=(0.75, 1.0, 1.4),
    ),
    Mix("mix-shift", "longer requests come three times as often; no stage becomes slower", "code"),
    Change(
        "starved", "requests of priority 5 queue eight times as long", "batch", "queue", factors=(8.0,), priority=5,
    ),
    Change(
        "starving", "requests of priority 0 queue half as long at the cost of the others", "batch", "queue",
        factors=(0.5,), priority=0,
    ),
    Change(
        "shift-12", "the P99 of prefill rises by 12 %, its lower 95 % stay", "summarize", "prefill",
        at=(0.95, 0.97), factors=(1.0, 1.12),
    ),
    Change(
        "shift-8", "the P99 of prefill rises by 8 %, its lower 95 % stay", "agents", "prefill",
        at=(0.95, 0.97), factors=(1.0, 1.08),
    ),
)  # fmt: skip
"""Service `search` has none: whatever is found in it is a false alarm."""


def of_service(truths: tuple[Truth, ...], service: str) -> tuple[Truth, ...]:
    """Return the truths that concern a service."""
    return tuple(truth for truth in truths if truth.service == service)
