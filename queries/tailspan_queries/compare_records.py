"""What a comparison is about and what it found: plain records, from the query to the renderers.

Units: nanoseconds (`_ns`) and shares between 0 and 1 (`_ratio`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailspan import attributes
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

REQUEST = attributes.ROLE_REQUEST
TTFT = "ttft"
STATISTICS: Mapping[str, float | None] = {"mean": None, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Names of the statistics of each part, with the quantile of those that are one."""
LEVELS = tuple(level for level in STATISTICS.values() if level is not None)


@dataclass(frozen=True, slots=True)
class Group:
    """The requests of one side: of one or more windows, and with the value of an attribute if `key` is given."""

    windows: tuple[Window, ...]
    filters: Filters = ALL
    key: str = ""
    value: str = ""

    @property
    def duration_ns(self) -> int:
        """How long the windows are together."""
        return sum(window.until_ns - window.since_ns for window in self.windows)


@dataclass(frozen=True, slots=True)
class Part:
    """The times of a stage, of TTFT or end-to-end: `wall_ns` (m,) of the requests number `requests` (m,)."""

    requests: NDArray[np.int64]
    wall_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests (n,) of a group, and the times of their parts. `kept_ratio` is how much of the group was read."""

    group: Group
    blocks: NDArray[np.int64]
    block_count: int
    block_ns: int
    weights: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    failed: NDArray[np.int64]
    parts: Mapping[str, Part]
    kept_ratio: float

    @property
    def size(self) -> int:
        """Requests that were read."""
        return len(self.weights)

    @property
    def requests(self) -> float:
        """Requests that the sample stands for."""
        return float(self.weights.sum()) / self.kept_ratio

    @property
    def rate(self) -> float:
        """Requests a second over the windows."""
        return self.requests / (self.group.duration_ns / 1e9)

    @property
    def error_ratio(self) -> float:
        """Share of requests that failed."""
        return float(self.failed @ self.weights / self.weights.sum()) if self.size else 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """One statistic of one part. before + mix = adjusted, adjusted + change = after, all in nanoseconds.

    `adjusted_ns` is what the earlier requests would have had with the later mix of prompt and output lengths. `low_ns`
    to `high_ns` is the 95 % interval of the change, None where there are too few requests or blocks. `verdict` is
    better, worse or unclear.
    """

    part: str
    statistic: str
    before_count: int
    after_count: int
    before_ns: float | None
    adjusted_ns: float | None
    after_ns: float | None
    low_ns: float | None
    high_ns: float | None
    p_value: float | None
    too_few: bool

    @property
    def mix_ns(self) -> float | None:
        """What the changed mix alone moved."""
        return None if self.adjusted_ns is None or self.before_ns is None else self.adjusted_ns - self.before_ns

    @property
    def change_ns(self) -> float | None:
        """What is left of the difference without the mix."""
        return None if self.adjusted_ns is None or self.after_ns is None else self.after_ns - self.adjusted_ns

    @property
    def change_ratio(self) -> float | None:
        """The change as a share of `adjusted_ns`; None if that is not above 0."""
        return self.ratio(self.change_ns)

    def ratio(self, amount_ns: float | None) -> float | None:
        """Return an amount as a share of `adjusted_ns`."""
        if amount_ns is None or self.adjusted_ns is None or self.adjusted_ns <= 0:
            return None
        return amount_ns / self.adjusted_ns

    @property
    def verdict(self) -> str:
        """What the interval says: a change whose interval holds 0 is unclear."""
        if self.low_ns is None or self.high_ns is None or self.low_ns <= 0 <= self.high_ns:
            return "unclear"
        return "worse" if self.low_ns > 0 else "better"


@dataclass(frozen=True, slots=True)
class MixEffect:
    """By how much other lengths alone moved one statistic of the end-to-end time, as a share of the earlier value.

    `low_ratio` to `high_ratio` is its 95 % interval, None where there are too few requests or blocks.
    """

    statistic: str
    ratio: float
    low_ratio: float | None
    high_ratio: float | None

    @property
    def certain(self) -> bool:
        """Say whether the interval leaves 0 out."""
        return self.low_ratio is not None and self.high_ratio is not None and self.low_ratio * self.high_ratio > 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two samples and their lines: every statistic of every part; `lines` is empty if a side has no request."""

    before: Sample
    after: Sample
    adjusted: bool
    strata: int
    lines: tuple[Line, ...]
    mix: tuple[MixEffect, ...] = ()
    findings: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    def line(self, part: str, statistic: str) -> Line | None:
        """Return one line."""
        found = (line for line in self.lines if (line.part, line.statistic) == (part, statistic))
        return next(found, None)

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts in the order of the lines."""
        return tuple(dict.fromkeys(line.part for line in self.lines))
