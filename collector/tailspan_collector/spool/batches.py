"""What the writer reads: batches with a token, frozen on disk before their first insert, committed in any order.

After a crash every batch that was frozen and not committed comes again with the same bytes and the same token, by which
ClickHouse recognises it. All before `done`, the lowest place that is not yet stored, is stored.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass

from tailspan_collector.spool.interfaces import Position, Received
from tailspan_collector.spool.log import Log
from tailspan_collector.spool.reader import Reader, Run
from tailspan_collector.spool.records import Record
from tailspan_collector.spool.state import StateFile

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are inserted together, and again with the same token if the first try was interrupted."""

    token: str
    run: Run

    @property
    def body(self) -> memoryview:
        """The batch as ClickHouse's `Protobuf` format wants it; not copied, a part of the spool's file."""
        return self.run.body

    @property
    def records(self) -> tuple[Record, ...]:
        """Its requests."""
        return self.run.records

    def message(self, record: Record) -> memoryview:
        """Return the part of the body that is one request."""
        return self.run.body[record.start - self.run.start : record.end - self.run.start]

    def received(self, record: Record) -> Received:
        """Return one request as it came."""
        return record.received(self.run.body, self.run.start)


class Batches:
    """The writer's side of a spool; the caller serialises `freeze` and `commit`."""

    def __init__(self, log: Log, reader: Reader, state: StateFile) -> None:
        self._log, self._reader, self._state = log, reader, state
        value = state.value
        self._id: str = value.get("spool") or uuid.uuid4().hex
        first = min(log.sizes, default=0)
        frozen = [(Position(segment, start), end) for segment, start, end in value.get("frozen", ())]
        self._again = frozen.copy()
        self._frozen: dict[Position, int] = dict(frozen)
        self._next = Position(*value.get("next", (first, 0)))
        self._oldest: tuple[Position, int] | None = None
        self._save()

    @property
    def done(self) -> Position:
        """The lowest place that is not stored."""
        return min([*self._frozen, self._next])

    @property
    def unfrozen_bytes(self) -> int:
        """Durable bytes that are in no batch yet. Call under the log's lock."""
        return self._log.bytes_after(self._next)

    @property
    def has_more(self) -> bool:
        """Whether `freeze` may return a batch. Call under the log's lock."""
        return bool(self._again) or self._log.settle(self._next) != self._log.end

    def oldest_age_s(self) -> float:
        """Return the age of the oldest request that is not stored, 0 if all are. Call under the log's lock."""
        done = self._log.settle(self.done)
        if done == self._log.end:
            return 0.0
        if self._oldest is None or self._oldest[0] != done:
            self._oldest = (done, self._reader.received_ns(done))
        return max(0.0, (time.time_ns() - self._oldest[1]) / 1e9)

    def freeze(self, most_bytes: int) -> Batch | None:
        """Decide the next batch, durably, or return one that an earlier process decided; None = nothing to read.

        Raises:
            OSError: the decision cannot be saved.
        """
        while self._again:
            position, end = self._again.pop(0)
            run = self._reader.read(position, end - position.offset, Position(position.segment, end))
            if run is not None and run.segment == position.segment:
                return self._batch(position, end, run)
            _LOG.error("the batch at %s of segment %s is no longer in the spool", position.offset, position.segment)
            self._frozen = {place: stop for place, stop in self._frozen.items() if place != position}
        run = self._reader.read(self._next, most_bytes)
        if run is None:
            return None
        before, start = (self._frozen, self._next), Position(run.segment, run.start)
        # Replaced, never changed: receivers read `done` at any time.
        self._frozen = {**self._frozen, start: run.end.offset}
        self._next = run.end
        try:
            self._save()
        except OSError:
            self._frozen, self._next = before
            raise
        return self._batch(start, run.end.offset, run)

    def commit(self, batch: Batch) -> None:
        """Remember that a batch is stored.

        Raises:
            OSError: that cannot be saved; after a crash the batch comes again.
        """
        self._frozen = {place: end for place, end in self._frozen.items() if self._token(place, end) != batch.token}
        self._save()

    def close(self) -> None:
        """Close the file of the state."""
        self._state.close()

    def _batch(self, position: Position, end: int, run: Run) -> Batch:
        return Batch(self._token(position, end), run)

    def _token(self, position: Position, end: int) -> str:
        return f"{self._id}-{position.segment}-{position.offset}-{end}"

    def _save(self) -> None:
        frozen = [(place.segment, place.offset, end) for place, end in self._frozen.items()]
        self._state.save({"spool": self._id, "next": (self._next.segment, self._next.offset), "frozen": frozen})
