"""The log of a spool: segments in order, appended to by many threads with one fsync for all that wait (group commit).

A request becomes visible to readers once it is durable. Errors: `SpoolFull` for a disk that is full or broken; the next
request tries again with a new segment, so that the spool recovers by itself.
"""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import Signal
from tailspan_collector.spool import records
from tailspan_collector.spool.interfaces import Position, SpoolFull
from tailspan_collector.spool.recent import Place
from tailspan_collector.spool.segments import SegmentWriter, segment_path, segment_sizes

_LOG = logging.getLogger(__name__)
RECORDS_PER_SEGMENT = 32_768
_RETRY_BROKEN_S = 5.0
_GATHER_S = 0.005  # exporters do not notice; each group commit costs a write, an fdatasync and four switches of threads


@dataclass(frozen=True, slots=True)
class Request:
    """A request on its way to disk."""

    digest: int
    payload: bytes
    peer: str


@dataclass(slots=True, eq=False)
class Group:
    """Requests that are written and fsynced together."""

    requests: list[Request] = field(default_factory=list)
    by_digest: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    callbacks: list[Callable[[Exception | None], None]] = field(default_factory=list)
    """Called once all is durable, or with the error; appended to under `changed`."""
    error: OSError | None = None

    def wait(self) -> None:
        """Return once all is durable.

        Raises:
            SpoolFull: it could not be written.
        """
        self.done.wait()
        failure = self.failure()
        if failure is not None:
            raise failure from self.error

    def failure(self) -> SpoolFull | None:
        """Return why it could not be written, as senders are told."""
        return None if self.error is None else SpoolFull(f"cannot write to the spool: {self.error}", _RETRY_BROKEN_S)


class Log:
    """A folder of segments."""

    def __init__(
        self,
        folder: Path,
        signal: Signal,
        metrics: Metrics,
        segment_bytes: int,
        first: int,
        on_durable: Callable[[int, Place], None],
    ) -> None:
        """Open the folder.

        `first` is the least number of a new segment; `on_durable` learns of every request, under `changed`.

        Raises:
            OSError: the folder cannot be written.
        """
        self.folder, self._segment_bytes, self._on_durable = folder, segment_bytes, on_durable
        self.changed = threading.Condition()
        self.closing = False
        self.sizes = segment_sizes(folder)
        self.own_first = max([first - 1, *self.sizes]) + 1
        """The first segment of this process: what is in it and later ones was written, so never torn, by itself."""
        self._bases: dict[int, int] = {}
        self._total = 0
        for number, size in self.sizes.items():
            self._bases[number], self._total = self._total, self._total + size
        self._group, self._being_written = Group(), Group()
        self._records = 0
        self._newest = self.own_first
        self._spooled = metrics.spooled.labels(signal.name)
        self._spooled_bytes = metrics.spooled_bytes.labels(signal.name)
        self._fsync_seconds = metrics.fsync_seconds.labels(signal.name)
        self._writer = SegmentWriter(folder, self.own_first)
        self._is_broken = False
        self._add_segment(self.own_first)
        self._appender = threading.Thread(target=self._append_loop, name=f"spool-{signal.name}", daemon=True)
        self._appender.start()

    # --- appending --------------------------------------------------------------------------------------------------

    def join_group(self, request: Request) -> tuple[Group, bool]:
        """Add a request to those that are written next; False if its bytes are on the way. Call under `changed`."""
        for group in (self._group, self._being_written):
            if group.by_digest.get(request.digest) == request.payload:
                return group, False
        group = self._group
        group.requests.append(request)
        group.by_digest[request.digest] = request.payload
        group.size += len(request.payload)
        if len(group.requests) == 1:
            self.changed.notify_all()
        return group, True

    @property
    def pending_bytes(self) -> int:
        """Bytes of requests that wait for a group commit. Call under `changed`."""
        return self._group.size + self._being_written.size

    def _append_loop(self) -> None:
        many = False
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._group.requests or self.closing)
                if many:  # where several sent at a time, more are on their way; a lone sender does not wait
                    self.changed.wait_for(lambda: self.closing, _GATHER_S)
                group, self._group = self._group, Group()
                self._being_written = group
            if not group.requests:
                return
            many = len(group.requests) > 1
            self._append(group)

    def _append(self, group: Group) -> None:
        places: list[tuple[int, Place]] = []
        try:
            if self._is_broken or self._writer.size >= self._segment_bytes or self._records >= RECORDS_PER_SEGMENT:
                self._roll()
            buffers = self._lay_out(group, places)
            begin = time.perf_counter()
            self._writer.append(buffers)
            self._fsync_seconds.observe(time.perf_counter() - begin)
        except OSError as error:
            _LOG.error("cannot write to the spool %s: %s", self.folder, error)
            group.error, self._is_broken = error, True
            places.clear()
        self._publish(group, places)

    def _lay_out(self, group: Group, places: list[tuple[int, Place]]) -> list[bytes]:
        buffers: list[bytes] = []
        number, offset, now_ns = self._writer.number, self._writer.size, time.time_ns()
        for request in group.requests:
            header = records.header(len(request.payload), request.digest, now_ns, request.peer)
            buffers += (header, request.payload)
            start = offset + len(header)
            offset = start + len(request.payload)
            places.append((request.digest, Place(number, start, offset)))
        return buffers

    def _publish(self, group: Group, places: list[tuple[int, Place]]) -> None:
        with self.changed:
            number, size = self._writer.number, self._writer.size
            self._total += size - self.sizes[number]
            self.sizes[number] = size
            self._records += len(places)
            for payload_digest, place in places:
                self._on_durable(payload_digest, place)
            self._being_written = Group()
            self.changed.notify_all()
        if places:
            self._spooled.inc(len(places))
            self._spooled_bytes.inc(group.size)
        group.done.set()
        for callback in group.callbacks:  # nobody joins the group any more
            callback(group.failure())

    def _roll(self) -> None:
        self._newest += 1  # a number is never tried twice: a failed creation may leave its file
        fresh = SegmentWriter(self.folder, self._newest)
        self._writer.close()
        with self.changed:
            self._writer, self._records, self._is_broken = fresh, 0, False
            self._add_segment(fresh.number)

    def _add_segment(self, number: int) -> None:
        self.sizes[number] = 0
        self._bases[number] = self._total

    # --- reading; call under `changed` -------------------------------------------------------------------------------

    @property
    def end(self) -> Position:
        """The place after the last durable request."""
        return Position(self._writer.number, self.sizes[self._writer.number])

    def bytes_after(self, position: Position) -> int:
        """Return how many durable bytes lie behind a place."""
        position = self.settle(position)
        return self._total - self._bases[position.segment] - position.offset

    def settle(self, position: Position) -> Position:
        """Return the same place, where something can be read: in a segment that is there and has not ended."""
        while position.segment < self._writer.number and position.offset >= self.sizes.get(position.segment, 0):
            position = Position(min(number for number in self.sizes if number > position.segment), 0)
        return position

    def remove(self, numbers: list[int]) -> None:
        """Delete segments that nobody needs any more."""
        for number in numbers:
            segment_path(self.folder, number).unlink(missing_ok=True)
            self.sizes.pop(number, None)
            self._bases.pop(number, None)

    # --- reading; takes no lock --------------------------------------------------------------------------------------

    def map(self, segment: int, end: int) -> mmap.mmap:
        """Map a segment up to an offset.

        Raises:
            FileNotFoundError: it was removed.
        """
        with segment_path(self.folder, segment).open("rb") as file:
            return mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ)

    def must_verify(self, segment: int) -> bool:
        """Whether checksums of requests in a segment must be compared: it was not this process that wrote it."""
        return segment < self.own_first

    # --- the end ----------------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Let the readers know that nothing more comes; return once what was taken is on disk."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._appender.join()

    def close(self) -> None:
        """Stop accepting and close the file."""
        self.stop_accepting()
        self._writer.close()
