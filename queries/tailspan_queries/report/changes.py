"""What was changed in the window: deployments, seen by a new version, and optimisations of the ledger.

In: rows of query `versions`, entries. Out: `Change` records in the order of time, numbered from 1.
A deployment is the first request of a version while or after another one of the service answered: the first version of
a service in the window is none, as it may have answered before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tailspan_queries.optimizations_records import Optimization
from tailspan_queries.report.answers import VersionRow
from tailspan_queries.times import Window

MOST = 30
"""Changes that are marked: more could not be told apart."""


@dataclass(frozen=True, slots=True)
class Change:
    """A moment at which something was changed, ns since the epoch."""

    moment_ns: int
    kind: Literal["deployment", "optimisation"]
    text: str
    number: int = 0


def changes_of(versions: Sequence[VersionRow], entries: Sequence[Optimization], window: Window) -> tuple[Change, ...]:
    """Return the changes in the window."""
    found = [*deployments(versions), *optimisations(entries, window)]
    found.sort(key=lambda change: change.moment_ns)
    return tuple(replace(change, number=number) for number, change in enumerate(found[:MOST], 1))


def deployments(versions: Sequence[VersionRow]) -> list[Change]:
    """Return a change for each version that took over from another one of its service."""
    latest: dict[str, str] = {}
    found = []
    for row in sorted(versions, key=lambda row: row.first_start_ns):
        if row.service in latest:
            text = f"{row.service}: version {latest[row.service]} → {row.version}"
            found.append(Change(row.first_start_ns, "deployment", text))
        latest[row.service] = row.version
    return found


def optimisations(entries: Sequence[Optimization], window: Window) -> list[Change]:
    """Return a change for each entry whose window with it begins within the window."""
    begun = [(item, item.after.since_ns) for item in entries if item.after and not item.removed]
    return [
        Change(since_ns, "optimisation", f"{item.name} ({item.place})")
        for item, since_ns in begun
        if window.since_ns <= since_ns < window.until_ns
    ]
