"""What happened to workers in a window, and the lines that tell a reader of a report about it.

In: a client, a window, filters. Out: `WorkerEvent` records, the earliest first, and one line for each crash and stall
and for what each worker dropped. A model leaves out only events that are about another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tailspan import attributes
from tailspan_queries import units
from tailspan_queries.breakdown import plural
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window, clock, datetime_ns

LINES = 3
"""Crashes, stalls and workers with drops that are told one by one; the rest are counted."""
REST = "`tailspan query worker_events` lists all"


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """One event; the names are the columns of query `worker_events`."""

    event: str
    start: datetime
    service: str
    instance: str
    model: str
    pid: int
    engine_id: str
    step: int
    step_requests: int
    open_requests: int
    stalled_ns: int
    dropped_records: int
    dropped_requests: int
    dropped_spans: int
    trace_id: str
    open_trace_ids: Sequence[str]

    @property
    def worker(self) -> str:
        """The worker as a reader knows it."""
        return f"worker {self.instance or self.service}".rstrip()


def worker_events(client: Client, window: Window, filters: Filters = ALL) -> tuple[WorkerEvent, ...]:
    """Return the events of a window, the earliest first; of very many the latest."""
    rows = client.run("worker_events", {**window.parameters, **filters.parameters}).records()
    return tuple(WorkerEvent(**row) for row in reversed(rows))


def warning_lines(events: Sequence[WorkerEvent]) -> tuple[str, ...]:
    """Return the lines that a report prints under its table; none without events."""
    kinds = {
        "crashes": [crash_line(event) for event in events if event.event == attributes.EVENT_CRASH],
        "stalls": [stall_line(event) for event in events if event.event == attributes.EVENT_STALL],
        "workers with drops": drop_lines(event for event in events if event.event == attributes.EVENT_DROPS),
    }
    found: list[str] = []
    for kind, lines in kinds.items():
        found += lines[:LINES]
        if len(lines) > LINES:
            found.append(f"and {len(lines) - LINES:,} more {kind}: {REST}")
    return tuple(found)


def crash_line(event: WorkerEvent) -> str:
    """Say which process disappeared, and when, with what."""
    return (
        f"{event.worker} process {event.pid} disappeared at {moment(event)}{step_of(event)} "
        f"with {plural(event.open_requests, 'open request')}: {look(event)}"
    )


def stall_line(event: WorkerEvent) -> str:
    """Say which process made no step, for how long, with what."""
    return (
        f"{event.worker} process {event.pid} had made no step for {units.duration(event.stalled_ns)} at {moment(event)}"
        f"{step_of(event)} with {plural(event.open_requests, 'open request')}: {look(event)}"
    )


def drop_lines(events: Iterable[WorkerEvent]) -> list[str]:
    """Say for each worker what it dropped altogether, and what to do against it."""
    by_worker: dict[tuple[str, str], list[WorkerEvent]] = {}
    for event in events:
        by_worker.setdefault((event.service, event.instance), []).append(event)
    lines = []
    for found in by_worker.values():
        worker = found[0].worker
        records = sum(event.dropped_records for event in found)
        requests = sum(event.dropped_requests for event in found)
        spans = sum(event.dropped_spans for event in found)
        if records or requests:
            parts = [plural(count, noun) for count, noun in ((records, "record"), (requests, "request")) if count]
            lines.append(
                f"{' and '.join(parts)} {was(records + requests)} dropped by {worker} (ring full): "
                "raise TAILSPAN_RING_RECORDS"
            )
        if spans:
            lines.append(
                f"{plural(spans, 'span')} {was(spans)} dropped by the agent of {worker} (queue full): "
                "see whether the collector answers"
            )
    return lines


def moment(event: WorkerEvent) -> str:
    """Return the time of an event for people."""
    return f"{clock(datetime_ns(event.start))} UTC"


def step_of(event: WorkerEvent) -> str:
    """Return the step that an engine had made last, where it is known."""
    return f" after step {event.step:,}" if event.step else ""


def look(event: WorkerEvent) -> str:
    """Return the command that shows a request concerned, else the event."""
    return f"tailspan trace {(*event.open_trace_ids, event.trace_id)[0]}"


def was(count: int) -> str:
    """Return the verb that agrees with a count."""
    return "was" if count == 1 else "were"
