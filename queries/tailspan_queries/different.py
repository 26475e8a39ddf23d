"""What is different about the slow requests: groups that are over-represented among them, ranked.

In: a client, a window, filters, which share is slow. Out: `DifferentReport`.
Each group that holds at least `LEAST_REQUESTS` of the requests read, and leaves as many, is tested against the rest: by
Fisher's exact test (without it where requests have weights) and by Student's t over blocks of time, as requests near
each other resemble each other; the weaker of the two counts. All candidates together, those that turned out to be
nothing as well, are corrected by Benjamini and Hochberg to a rate of false discoveries of `FALSE_DISCOVERIES`. What is
shown has at least `LEAST_SLOW` slow requests too. Groups rank by how much larger their share of the slow requests is
than that of all, at the lower end of the interval: neither small groups that were unlucky nor large ones that hold
nearly every request come first. Of an attribute with an order the bound that ranks first is shown.
Over more than `READ_LIMIT` stored requests, a sample of their traces is read (`sampling`), unless everything is asked
for. Tests and intervals then rest on the requests read, which are not scaled up; steps are not read, so that no group
is one of `batch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tailspan_queries import sampling, units
from tailspan_queries import significance as stats
from tailspan_queries.client import Client
from tailspan_queries.different_groups import Group, Numbers, groups_of
from tailspan_queries.different_overlap import Overlap, overlaps
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

SLOWEST = 0.01
FALSE_DISCOVERIES = 0.05
READ_LIMIT = 50_000
"""Stored requests up to which all are read; of more, a sample of about as many is."""
LEAST_REQUESTS = 20
LEAST_SLOW = 5
FEWEST = 200
"""Requests below which nothing is said."""
PER_BLOCK = 10
"""Requests that a block of time must hold; with fewer, neighbours are joined."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A group that is over-represented among the slow requests.

    `times` is how many times as likely its requests are to be slow as the others, `times_low` the lower end of its 95 %
    interval; `vanish_ratio` is the share of slow requests that would not be slow if they were as the others.
    `slow_share_margin_ratio` is half of the 95 % interval of `slow_share_ratio` around the group's share of all
    requests that reach the same threshold; None where every request was read.
    `stage` is the stage in which its slow requests take most longer than requests that are not slow.
    """

    group: Group
    name: str
    share_ratio: float
    slow_share_ratio: float
    times: float
    times_low: float
    p_value: float
    q_value: float
    vanish_ratio: float
    stage: str
    stage_extra_ns: float
    slow_share_margin_ratio: float | None = None
    overlap: Overlap | None = None


@dataclass(frozen=True, slots=True)
class DifferentReport:
    """The findings, the first one explains most; `requests` is scaled up from what was read."""

    window: Window
    filters: Filters
    slowest: float
    sample: sampling.Sample
    requests: int
    kept_requests: int
    kept_slow: int
    threshold_ns: float
    candidates: int
    findings: tuple[Finding, ...]


def different_report(
    client: Client, window: Window, filters: Filters = ALL, slowest: float = SLOWEST, *, everything: bool = False
) -> DifferentReport:
    """Ask which attributes are over-represented among the slowest share; `everything` reads all requests."""
    sample = sampling.choose(client, window, filters, READ_LIMIT, everything=everything)
    parameters = {**window.parameters, **filters.parameters, **sample.parameters, "slowest": slowest}
    rows = client.run("different", parameters).records()
    whole, candidates, findings = judge(rows, sample.ratio)
    return DifferentReport(
        window,
        filters,
        slowest,
        sample,
        round(whole.requests / sample.ratio) if whole else 0,
        whole.kept_requests if whole else 0,
        whole.kept_slow if whole else 0,
        rows[0]["threshold_ns"] if rows else 0.0,
        candidates,
        tuple(findings),
    )


def judge(rows: Iterable[Mapping[str, Any]], read_ratio: float = 1.0) -> tuple[Group | None, int, list[Finding]]:
    """Return all requests as a group, how many groups were tested, and what was found; a part of them was read."""
    whole, groups = groups_of(rows)
    if whole is None or whole.kept_requests < FEWEST or whole.kept_slow in (0, whole.kept_requests):
        return whole, 0, []
    tested = [
        group for group in groups if LEAST_REQUESTS <= group.kept_requests <= whole.kept_requests - LEAST_REQUESTS
    ]
    logs = stats.log_factorials(whole.kept_requests)
    chances = [chance_of(group, whole, logs) for group in tested]
    rates = stats.benjamini_hochberg(chances)
    found = [
        finding_of(group, whole, chance, rate, read_ratio)
        for group, chance, rate in zip(tested, chances, rates, strict=True)
        if rate <= FALSE_DISCOVERIES and group.kept_slow >= LEAST_SLOW
    ]
    ranked = best_of_each(sorted(found, key=lambda finding: (-surplus(finding), finding.name)))
    related = overlaps([finding.group for finding in ranked], whole.members)
    return whole, len(tested), [replace(f, overlap=o) for f, o in zip(ranked, related, strict=True)]


def chance_of(group: Group, whole: Group, logs: Numbers) -> float:
    """Return the chance of a group with so many slow requests, if it were like the others."""
    joined = joined_blocks(whole.kept_requests, len(whole.block_requests))
    in_blocks = stats.blocks_greater(
        *(
            np.add.reduceat(counts, joined).tolist()
            for counts in (group.block_requests, group.block_slow, whole.block_requests, whole.block_slow)
        )
    )
    if whole.squared_weight > whole.requests:
        return in_blocks
    exact = stats.fisher_greater(group.kept_slow, group.kept_requests, whole.kept_slow, whole.kept_requests, logs)
    return max(exact, in_blocks)


def joined_blocks(requests: int, blocks: int) -> list[int]:
    """Return at which blocks to begin a new one, so that each holds enough requests."""
    width = 1
    while width < blocks and requests * width < PER_BLOCK * blocks:
        width *= 2
    return list(range(0, blocks, width))


def finding_of(group: Group, whole: Group, chance: float, rate: float, read_ratio: float) -> Finding:
    """Describe a group that was found."""
    others, other_slow = whole.requests - group.requests, whole.slow_requests - group.slow_requests
    times = stats.times_as_likely(group.slow_requests, group.requests, other_slow, others)
    expected = group.requests * units.part(other_slow, others)
    slow, usual = group.slow_stage_means(), whole.other_stage_means()
    extra = {stage: slow[stage] - usual.get(stage, 0.0) for stage in slow}
    stage = max(extra, key=lambda name: extra[name], default="")
    slow_share = group.slow_requests / whole.slow_requests
    return Finding(
        group=group,
        name=group.name,
        share_ratio=group.requests / whole.requests,
        slow_share_ratio=slow_share,
        times=times,
        times_low=stats.lower_bound(times, chance),
        p_value=chance,
        q_value=rate,
        vanish_ratio=max(group.slow_requests - expected, 0.0) / whole.slow_requests,
        stage=stage,
        stage_extra_ns=extra.get(stage, 0.0),
        slow_share_margin_ratio=None if read_ratio == 1 else margin(slow_share, whole.kept_slow, read_ratio),
    )


def margin(share: float, kept: int, read_ratio: float) -> float:
    """Return half of the 95 % interval of a share of `kept` requests that were drawn without putting back."""
    return stats.NORMAL_95 * math.sqrt(share * (1 - share) / kept * (1 - read_ratio))


def surplus(finding: Finding) -> float:
    """Return how much more of the slow requests than of all the group holds, at the lower end of its interval."""
    slow = finding.times_low * finding.share_ratio
    return slow / (slow + 1 - finding.share_ratio) - finding.share_ratio


def best_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """Keep the first finding of each attribute with an order; of others each value is its own."""
    seen: set[str] = set()
    kept = []
    for finding in findings:
        if finding.group.relation != "=":
            if finding.group.attribute in seen:
                continue
            seen.add(finding.group.attribute)
        kept.append(finding)
    return kept
