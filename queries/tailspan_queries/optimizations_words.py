"""The optimisation ledger in words: totals, ranges, costs, what is unexplained.

In: records. Out: text for one line or cell.
"""

from __future__ import annotations

import math

from tailspan_queries import units
from tailspan_queries.optimizations_records import Account, Cost, Optimization, Span
from tailspan_queries.times import Window, clock


def headline(account: Account) -> str:
    """Say what the total was and is."""
    if account.total_origin == "nothing":
        return f"{account.title}: no total known"
    return (
        f"{account.title}: mean end-to-end {units.duration(account.total_before_ns)} -> "
        f"{units.duration(account.total_after_ns)}, {moved(account.improvement_ratio)}"
    )


def moved(ratio: float) -> str:
    """Return an improvement in words."""
    if not ratio:
        return "unchanged"
    return f"{units.percent_text(abs(ratio), 1)} {'better' if ratio > 0 else 'WORSE'}"


def sublines(account: Account) -> list[str]:
    """Return the tail and the windows of what was measured, and that claims are claims."""
    if account.total_origin == "claim":
        return ["Claims: these numbers were given by somebody, nothing here was measured."]
    found = []
    if account.tail_before_ns is not None and account.tail_after_ns is not None:
        change = units.part(account.tail_change_ns or 0.0, account.tail_before_ns)
        found.append(
            f"slowest 1 %: mean {units.duration(account.tail_before_ns)} -> {units.duration(account.tail_after_ns)}, "
            f"{moved(change)}"
        )
    if account.before and account.after:
        found.append(f"{between(account.before)} -> {between(account.after)} UTC")
    return found


def between(window: Window) -> str:
    """Return a window for people."""
    first, last = clock(window.since_ns), clock(window.until_ns)
    return f"{first}..{last[11:] if first[:10] == last[:10] else last}"


def range_text(span: Span) -> str:
    """Return a duration, or from which to which."""
    low, high = (units.duration(value) if math.isfinite(value) else "any" for value in span)
    return low if low == high else f"{low} to {high}"


def share_text(account: Account, gain_ns: Span) -> str:
    """Return which part of the change of the total a gain is."""
    shares = [account.share(value) if math.isfinite(value) else None for value in gain_ns]
    low, high = (units.percent(share) for share in sorted(shares, key=lambda share: share or 0.0))
    return low if low == high else f"{low} to {high}"


def cost_text(cost: Cost) -> str:
    """Return what an optimisation costs."""
    memory = f"{cost.gpu_memory_bytes / 2**30:.3g} GiB GPU memory" if cost.gpu_memory_bytes else ""
    accuracy = f"{cost.accuracy_points:g} points accuracy" if cost.accuracy_points else ""
    return "; ".join(filter(None, (cost.text, memory, accuracy))) or units.ABSENT


def remainder(account: Account) -> str:
    """Say what of the whole change the entries do not explain."""
    if account.total_origin == "nothing":
        return "without a total there is no remainder to state."
    low, high = account.unexplained_ns
    text = (
        f"entries explain {range_text(account.listed_ns)} of {units.duration(account.change_ns)} "
        f"({share_text(account, account.listed_ns)}); unexplained: {range_text((low, high))} "
        f"({share_text(account, (low, high))})."
    )
    if account.tokens:
        text += (
            f"\ntokens an answer are not given: at most {units.significant(account.tokens[1])} fit into the totals"
            + (
                f", {units.significant(account.tokens_needed)} would explain all of the change."
                if account.tokens_needed is not None
                else "."
            )
        )
    return text


def evidence(item: Optimization) -> list[str]:
    """Return what an entry rests on."""
    found = [f"{between(item.before)}\n-> {between(item.after)}"] if item.before and item.after else []
    if item.claim:
        per = "/token" if item.claim.per == "token" else ""
        sides = " -> ".join(f"{units.duration(ns)}{per}" for ns in (item.claim.before_ns, item.claim.after_ns))
        found.append(f"claim: {sides}")
    return found
