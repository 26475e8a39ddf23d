"""Whether a stage got slower than it was at the same hours of previous days, or in a window that is named.

In: a client, a window, its baseline. Out: `Regression` records: every statistic looked at, those that regressed first.
A statistic regressed if it moved up by more than a threshold (10 %), its 95 % interval excludes 0, and its p-value
still holds among all that were looked at (Holm, 5 %). How intervals come about, and how the mix of lengths is taken
out, is in `compare`; how often it alarms without a reason is measured by `benchmarks/bench_regress.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.compare import compare
from tailspan_queries.compare_read import DEFAULT_LIMIT, read_samples
from tailspan_queries.compare_records import STATISTICS, Comparison, Group, Line, Sample
from tailspan_queries.filters import Filters
from tailspan_queries.sampling import stored
from tailspan_queries.stats_change import change_block, holm
from tailspan_queries.times import NS_PER_SECOND, Window

DAY_NS = 86_400 * NS_PER_SECOND
DEFAULT_DAYS = 7
THRESHOLD = 0.1
FALSE_ALARMS = 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """One statistic of one part: what moved, whether it regressed, and since when.

    `since_ns` is None if it did not regress, or if it is slow from the begin of the window on: then it began earlier.
    """

    line: Line
    p_holm: float | None
    regressed: bool
    improved: bool
    since_ns: int | None


@dataclass(frozen=True, slots=True)
class Regression:
    """The answer: the comparison, and its statistics judged, the largest rise of what regressed first."""

    comparison: Comparison
    threshold: float
    findings: tuple[Finding, ...]

    @property
    def regressed(self) -> tuple[Finding, ...]:
        """What got slower."""
        return tuple(found for found in self.findings if found.regressed)


def regress(
    client: Client,
    window: Window,
    baseline: Sequence[Window],
    filters: Filters,
    statistics: Sequence[str] = ("p99",),
    threshold: float = THRESHOLD,
    limit: int | None = DEFAULT_LIMIT,
) -> Regression:
    """Read the window and its baseline, of each about `limit` requests or with None all, and judge."""
    samples = read_samples(client, Group(tuple(baseline), filters), Group((window,), filters), limit)
    return judge(compare(*samples), statistics, threshold)


def previous_days(client: Client, window: Window, filters: Filters, days: int = DEFAULT_DAYS) -> tuple[Window, ...]:
    """Return the same hours (UTC) of the previous days that have requests, the latest first.

    Raises: UserError if the window is longer than a day: it would overlap the day before.
    """
    if window.until_ns - window.since_ns > DAY_NS:
        raise UserError("a window of more than a day overlaps the day before", "Name a --baseline A..B, or shorten it")
    shifted = (Window(window.since_ns - day * DAY_NS, window.until_ns - day * DAY_NS) for day in range(1, days + 1))
    return tuple(earlier for earlier in shifted if stored(client, (earlier,), filters).kept)


def judge(report: Comparison, statistics: Sequence[str] = ("p99",), threshold: float = THRESHOLD) -> Regression:
    """Say which of the statistics regressed."""
    lines = [line for line in report.lines if line.statistic in statistics]
    known = [line for line in lines if line.p_value is not None]
    p_holm = dict(zip(known, holm([line.p_value for line in known if line.p_value is not None]), strict=True))
    findings = []
    for line in lines:
        moved = line.change_ratio is not None and abs(line.change_ratio) > threshold
        sure = moved and p_holm.get(line, 1.0) < FALSE_ALARMS
        regressed = sure and line.verdict == "worse"
        since_ns = began(report, line) if regressed else None
        findings.append(Finding(line, p_holm.get(line), regressed, sure and line.verdict == "better", since_ns))
    findings.sort(key=lambda found: (not found.regressed, -(found.line.change_ratio or 0.0)))
    return Regression(report, threshold, tuple(findings))


def began(report: Comparison, line: Line) -> int | None:
    """Return when a statistic got slower: the begin of a block; None if it was slow from the first block on."""
    after = report.after
    level = STATISTICS[line.statistic]
    if line.adjusted_ns is None or line.part not in after.parts:
        return None
    slow, total = beyond(after, line.part, line.adjusted_ns)
    # A mean has no share beyond it: how many are slower than it is taken from the earlier requests.
    rate = 1 - level if level is not None else share_beyond(report.before, line.part, line.adjusted_ns)
    block = change_block(slow, total, rate)
    return after.group.windows[0].since_ns + block * after.block_ns if block else None


def beyond(sample: Sample, part: str, threshold_ns: float) -> tuple[np.ndarray, np.ndarray]:
    """Return by block how many requests took longer than a threshold in a part, and how many have the part."""
    found = sample.parts[part]
    blocks, weights = sample.blocks[found.requests], sample.weights[found.requests]
    slow = np.bincount(blocks, weights * (found.wall_ns > threshold_ns), sample.block_count)
    return slow, np.bincount(blocks, weights, sample.block_count)


def share_beyond(sample: Sample, part: str, threshold_ns: float) -> float:
    """Return which part of the requests took longer."""
    slow, total = beyond(sample, part, threshold_ns)
    return float(slow.sum() / total.sum())
