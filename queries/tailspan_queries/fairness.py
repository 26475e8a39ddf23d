"""Who waits in the queue: percentiles by priority or another attribute, starvation, and classes whose tail rises.

In: a client, a window, filters, an attribute, how many times the median is long, a baseline window. Out:
`FairnessReport`. Without a baseline the first half of the window is the earlier period. A class has risen if its P99 of
the wait rose by `LEAST_RISE` or more, and further than it differs between blocks of time explains: by Welch's t of the
logarithms of the P99 in 8 blocks of each period, at `FALSE_ALARMS` divided by the number of classes (Bonferroni).
Of more than `READ_LIMIT` stored requests a sample of about as many is read, unless everything is asked for. Memory of
ClickHouse: some 2 KB for each request that is read.
Units: ns, shares between 0 and 1. Errors: UserError for a baseline that overlaps the end of the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tailspan.errors import UserError
from tailspan_queries import significance as stats
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.sampling import Sample, choose
from tailspan_queries.times import Window

READ_LIMIT = 100_000
"""Stored requests that are read; of more, a sample of about as many."""
PRIORITY = "priority"
LONG = 10.0
"""A wait is long if it is so many times the median wait of all requests."""
KEYS = 20
LEAST_RISE = 0.1
LEAST_FALL = 0.02
"""Change of the median of all requests from which on it fell."""
FALSE_ALARMS = 0.05
STARVED = 0.05
"""Share of a class's requests with a long wait from which on it starves, if that is twice the share of everyone."""
FEW = 100
"""Requests that a class must have in a period for its P99 to be compared."""
NO_WAIT_NS = 1000.0
"""Shorter waits are none: their differences, in logarithm, are those of clocks."""


@dataclass(frozen=True, slots=True)
class WaitClass:
    """The waits of one class of requests, or of everyone; the names are the columns of query `fairness`."""

    everyone: bool
    key: str
    requests: int
    kept_requests: int
    wait_mean_ns: float
    wait_p50_ns: float
    wait_p90_ns: float
    wait_p95_ns: float
    wait_p99_ns: float
    wait_max_ns: int
    long_wait_ns: float
    long_ratio: float
    longest_trace_id: str
    before_requests: int
    before_p50_ns: float | None
    before_p99_ns: float | None
    after_requests: int
    after_p50_ns: float | None
    after_p99_ns: float | None
    before_blocks_ns: tuple[float, ...]
    after_blocks_ns: tuple[float, ...]

    @property
    def p99_change_ratio(self) -> float | None:
        """Change of the P99 from the earlier to the later period, 0.1 for 10 % more; None if a period is empty."""
        return change(self.before_p99_ns, self.after_p99_ns)

    @property
    def p50_change_ratio(self) -> float | None:
        """Change of the median from the earlier to the later period."""
        return change(self.before_p50_ns, self.after_p50_ns)

    @property
    def rise_p_value(self) -> float:
        """Chance of a P99 that rose so much from the blocks of the earlier period to the later ones by itself."""
        return stats.welch_greater(logarithms(self.before_blocks_ns), logarithms(self.after_blocks_ns))


@dataclass(frozen=True, slots=True)
class LongWait:
    """One of the longest waits; the names are the columns of query `longest_waits`."""

    trace_id: str
    key: str
    start: datetime
    wait_ns: int
    e2e_ns: int
    instance: str


@dataclass(frozen=True, slots=True)
class FairnessReport:
    """The classes, that with the most requests first; `everyone` is None if no request of the window queued."""

    window: Window
    baseline: Window
    filters: Filters
    by: str
    times: float
    sample: Sample
    everyone: WaitClass | None
    classes: tuple[WaitClass, ...]
    longest: tuple[LongWait, ...]

    @property
    def halves(self) -> bool:
        """Whether the periods are the halves of the window."""
        return self.baseline.since_ns == self.window.since_ns

    @property
    def risen(self) -> tuple[WaitClass, ...]:
        """Classes whose P99 rose beyond chance."""
        level = FALSE_ALARMS / max(len(self.classes), 1)
        return tuple(
            found
            for found in self.classes
            if min(found.before_requests, found.after_requests) >= FEW
            and (found.p99_change_ratio or 0) >= LEAST_RISE
            and found.rise_p_value < level
        )

    @property
    def median_fell(self) -> bool:
        """Whether the median wait of everyone fell."""
        return self.everyone is not None and (self.everyone.p50_change_ratio or 0) <= -LEAST_FALL

    @property
    def starved(self) -> tuple[WaitClass, ...]:
        """Classes of which many requests wait long although those of everyone do not, the worst first."""
        if self.everyone is None or len(self.classes) < 2:
            return ()
        least = max(STARVED, 2 * self.everyone.long_ratio)
        found = [one for one in self.classes if one.long_ratio >= least and one.long_ratio > 0]
        return tuple(sorted(found, key=lambda one: -one.long_ratio))


def fairness_report(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    by: str = PRIORITY,
    times: float = LONG,
    baseline: Window | None = None,
    limit: int = KEYS,
    waits: int = 5,
    *,
    everything: bool = False,
) -> FairnessReport:
    """Ask who waits; with `everything` of all requests, however many.

    Raises: UserError if the baseline overlaps the window.
    """
    before = baseline or first_half(window)
    if baseline and baseline.since_ns < window.until_ns and window.since_ns < baseline.until_ns:
        raise UserError("the baseline overlaps the window", "End the earlier one where the later one begins")
    read = (window, baseline) if baseline else (window,)
    sample = choose(client, read, filters, READ_LIMIT, everything=everything)
    parameters = {**window.parameters, **filters.parameters, "by": by}
    periods = {f"baseline_{name}": value for name, value in before.parameters.items()}
    asked = {**parameters, **periods, **sample.parameters, "times": times, "limit": limit}
    rows = [wait_class(row) for row in client.run("fairness", asked).records()]
    found = client.run("longest_waits", {**parameters, "limit": waits}).records() if rows and waits else []
    return FairnessReport(
        window=window,
        baseline=before,
        filters=filters,
        by=by,
        times=times,
        sample=sample,
        everyone=next((row for row in rows if row.everyone), None),
        classes=tuple(row for row in rows if not row.everyone),
        longest=tuple(LongWait(**row) for row in found),
    )


def wait_class(row: Mapping[str, Any]) -> WaitClass:
    """Read one row of the query."""
    blocks = {name: tuple(row[name]) for name in ("before_blocks_ns", "after_blocks_ns")}
    return WaitClass(**{**row, **blocks, "everyone": bool(row["everyone"])})


def logarithms(waits_ns: Sequence[float]) -> list[float]:
    """Return the logarithms of waits: a wait that doubles counts alike, however long it was."""
    return [math.log(max(wait_ns, NO_WAIT_NS)) for wait_ns in waits_ns]


def first_half(window: Window) -> Window:
    """Return the earlier half of a window."""
    return Window(window.since_ns, max((window.since_ns + window.until_ns) // 2, window.since_ns + 1))


def change(before: float | None, after: float | None) -> float | None:
    """Return by which part a value changed; None if it is not known or was nothing."""
    return after / before - 1 if before and after is not None else None
