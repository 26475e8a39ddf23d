"""What the agent counts about itself, for its own metrics.

All numbers only grow. `requests_dropped` are those that a full ring, or a lost record of their begin, left without
spans; requests that sampling leaves out are not dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the agent started."""

    records: int = 0
    records_dropped: int = 0
    requests_dropped: int = 0
    spans_exported: int = 0
    spans_dropped: int = 0
    export_failures: int = 0


class Destination(Protocol):
    """What is counted of an outbox."""

    exported: int
    dropped: int


def of_outboxes(outboxes: Sequence[Destination]) -> Counters:
    """Return what the outboxes alone can tell; an agent that knows more passes its own function."""
    return Counters(
        spans_exported=sum(outbox.exported for outbox in outboxes),
        spans_dropped=sum(outbox.dropped for outbox in outboxes),
        export_failures=sum(getattr(getattr(outbox, "exporter", None), "failures", 0) for outbox in outboxes),
    )
