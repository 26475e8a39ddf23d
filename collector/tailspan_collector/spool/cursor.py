"""A reader of a spool with its own durable position and its own bounds, such as a destination of forwarding.

One that falls further behind than its bounds allow skips the oldest requests, so that it never holds up the disk; what
it skipped is counted and said once.
"""

from __future__ import annotations

import logging
import threading
import time

from tailspan_collector.spool.interfaces import Chunk, Position
from tailspan_collector.spool.log import Log
from tailspan_collector.spool.reader import Reader
from tailspan_collector.spool.state import StateFile

_LOG = logging.getLogger(__name__)


class SpoolCursor:
    """See `interfaces.Cursor`; for one reading thread, the figures for any."""

    def __init__(
        self, name: str, log: Log, reader: Reader, state: StateFile, most_behind_bytes: int, most_behind_seconds: float
    ) -> None:
        self.name = name
        self._log, self._reader, self._state = log, reader, state
        self._most_bytes, self._most_seconds = most_behind_bytes, most_behind_seconds
        self._lock = threading.Lock()
        with log.changed:
            # A new destination gets what comes from now on.
            self._position = Position(*state.value.get("position", (log.end.segment, log.end.offset)))
        self._oldest: tuple[Position, int] | None = None
        self.skipped_requests = 0
        self.skipped_bytes = 0
        self._save()

    @property
    def position(self) -> Position:
        """The place before the next request."""
        return self._position

    @property
    def behind_bytes(self) -> int:
        """See `Cursor`."""
        with self._log.changed:
            return self._log.bytes_after(self._position)

    @property
    def behind_seconds(self) -> float:
        """See `Cursor`."""
        with self._log.changed:
            position = self._log.settle(self._position)
            if position == self._log.end:
                return 0.0
        return max(0.0, (time.time_ns() - self._received_ns(position)) / 1e9)

    def wait(self, timeout: float) -> bool:
        """See `Cursor`."""
        with self._log.changed:
            self._log.changed.wait_for(lambda: self._has_more() or self._log.closing, timeout)
            return self._has_more()

    def next(self, most_bytes: int, after: Position | None = None) -> Chunk | None:
        """See `Cursor`."""
        self.enforce_bounds()
        run = self._reader.read(self._position if after is None else max(after, self._position), most_bytes)
        if run is None:
            return None
        return Chunk(tuple(record.received(run.body, run.start) for record in run.records), run.end)

    def commit(self, chunk: Chunk) -> None:
        """See `Cursor`."""
        with self._lock:
            self._position = max(self._position, chunk.end)
            self._save()

    def enforce_bounds(self) -> None:
        """Skip what is further behind than allowed, segment by segment."""
        with self._lock:
            while (end := self._end_of_too_old()) is not None:
                count = self._reader.count(self._position, end)
                if not self.skipped_requests:
                    _LOG.warning(
                        "%s is further behind than its bounds (%s bytes, %s s) allow and misses the oldest requests",
                        self.name, self._most_bytes, self._most_seconds,
                    )  # fmt: skip
                self.skipped_requests += count
                self.skipped_bytes += end.offset - self._position.offset
                self._position = end
                self._save()

    def close(self) -> None:
        """Close the file of the position."""
        self._state.close()

    def _end_of_too_old(self) -> Position | None:
        with self._log.changed:
            self._position = self._log.settle(self._position)
            excess = self._log.bytes_after(self._position) - self._most_bytes
            size, last = self._log.sizes.get(self._position.segment, 0), self._log.end
        is_old = self.behind_seconds > self._most_seconds
        if self._position == last or (excess <= 0 and not is_old):
            return None
        if excess >= size - self._position.offset:
            return Position(self._position.segment, size)
        return self._first_allowed(size, excess)

    def _first_allowed(self, size: int, excess: int) -> Position | None:
        """Return the first place in this segment from which on all is within the bounds."""
        oldest_ns = time.time_ns() - int(self._most_seconds * 1e9)
        position = self._position
        while position.offset < size:
            run = self._reader.read(position, 1 << 20, Position(position.segment, size))
            if run is None or run.segment != position.segment:
                return Position(position.segment, size)
            for record in run.records:
                if record.received_ns >= oldest_ns and record.start - self._position.offset >= excess:
                    return Position(position.segment, record.start)
            position = run.end
        return Position(position.segment, size)

    def _received_ns(self, position: Position) -> int:
        if self._oldest is None or self._oldest[0] != position:
            self._oldest = (position, self._reader.received_ns(position))
        return self._oldest[1]

    def _has_more(self) -> bool:
        return self._log.settle(self._position) != self._log.end

    def _save(self) -> None:
        try:
            self._state.save({"position": (self._position.segment, self._position.offset)})
        except OSError as error:
            _LOG.error("the position of %s cannot be saved: %s; a crash may repeat requests", self.name, error)
