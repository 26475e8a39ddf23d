"""What a reader of the ledger must know before trusting its numbers, one line each.

In: the effects of an account and the samples of its totals. Out: lines, the most important first.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailspan import attributes
from tailspan_queries import units
from tailspan_queries.filters import Filters
from tailspan_queries.optimizations_account import spans_another
from tailspan_queries.optimizations_measure import Sample
from tailspan_queries.optimizations_records import Effect

FEW_REQUESTS = 100
"""Requests of a window below which its p99 rests on one of them."""
ADDS_UP = 0.1
"""Part of the change of the tail by which the entries may miss it before that is told."""


def cautions(effects: Sequence[Effect], first: Sample, last: Sample, filters: Filters) -> list[str]:
    """Return all lines."""
    return [
        *worse_tails(effects),
        *about_totals(effects, first, last, filters),
        *spans_another(effects),
        *unclear(effects),
        *tail_sums(effects, first, last),
    ]


def worse_tails(effects: Sequence[Effect]) -> list[str]:
    """Tell of entries that gained on average and lost among the slowest."""
    return [
        f"THE TAIL GOT WORSE: {effect.optimization.name} gained on average and lost "
        f"{units.duration(-effect.measured.tail_gain_ns)} among the slowest 1 %"
        for effect in effects
        if effect.measured and effect.measured.tail_gain_ns < 0 < effect.gain_ns[0]
    ]


def about_totals(effects: Sequence[Effect], first: Sample, last: Sample, filters: Filters) -> list[str]:
    """Tell of totals that rest on few requests or on others than an entry."""
    found = []
    if not (first.kept and last.kept):
        found.append("no requests in a window of the total: shares and remainder are unknown")
    elif min(first.kept, last.kept) < FEW_REQUESTS:
        found.append(f"a window of the total has {min(first.kept, last.kept):,} requests: p99 is the slowest of them")
    others = [
        effect.optimization.name for effect in effects if effect.measured and effect.optimization.filters != filters
    ]
    if others:
        found.append(f"measured over other requests than the total: {', '.join(others)}; their shares do not add up")
    return found


def unclear(effects: Sequence[Effect]) -> list[str]:
    """Tell of entries whose interval does not leave out that they gained nothing."""
    names = [
        effect.optimization.name
        for effect in effects
        if effect.measured
        and effect.measured.interval_ns
        and effect.measured.interval_ns[0] <= 0 <= effect.measured.interval_ns[1]
    ]
    return [f"the interval of the gain holds 0, so that it may be none: {', '.join(names)}"] if names else []


def tail_sums(effects: Sequence[Effect], first: Sample, last: Sample) -> list[str]:
    """Tell that gains at the tail do not sum to its change, where several entries do not."""
    gains = [effect.measured.tail_gain_ns for effect in effects if effect.counted and effect.measured]
    request = attributes.ROLE_REQUEST
    change = first.tail_ns.get(request, 0.0) - last.tail_ns.get(request, 0.0)
    if len(gains) < 2 or abs(sum(gains) - change) <= ADDS_UP * abs(change):
        return []
    return ["at p99 the parts do not add up: after each change other requests are the slowest"]
