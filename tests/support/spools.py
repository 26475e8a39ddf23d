"""Spools for tests."""

from __future__ import annotations

from pathlib import Path

from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES, Signal
from tailspan_collector.spool import Received, Spool


def open_spool(
    folder: Path,
    max_unread_bytes: int = 1 << 30,
    max_unread_seconds: float = 3600.0,
    segment_bytes: int = 64 << 20,
    signal: Signal = TRACES,
    metrics: Metrics | None = None,
) -> Spool:
    """Open a spool with limits that a test does not reach unless it sets them."""
    return Spool(folder, signal, max_unread_bytes, max_unread_seconds, metrics or Metrics(), segment_bytes)


def drain(spool: Spool, most_bytes: int = 1 << 20) -> list[bytes]:
    """Freeze and commit everything; return the requests."""
    return [request.payload for request in drain_received(spool, most_bytes)]


def drain_received(spool: Spool, most_bytes: int = 1 << 20) -> list[Received]:
    """Freeze and commit everything; return the requests with their senders and times."""
    found: list[Received] = []
    while (batch := spool.freeze(most_bytes)) is not None:
        found += [batch.received(record) for record in batch.records]
        spool.commit(batch)
    return found
