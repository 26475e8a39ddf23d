"""The durable queue between the receiver and the writer: a request is acknowledged only after it is on disk.

In: OTLP requests from many threads. Out: frozen batches, in order, to one writer.
Appends of all threads that wait are written and fsynced together (group commit). A request whose bytes are already in
the spool (a sender that got no answer sends again) is acknowledged and not stored twice.

Errors: `SpoolFull` asks the sender to come back later: too much is unread, or the disk is full.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

from tailspan_collector import records
from tailspan_collector.files import read_json, write_json
from tailspan_collector.segments import SegmentWriter, remove_read, segment_path, segment_sizes

_LOG = logging.getLogger(__name__)
_KEEP_READ_SECONDS = 300.0  # longer than a sender tries; OTLP exporters give up after about a minute
_KEEP_READ_BYTES = 256 * 1024 * 1024


class SpoolFull(Exception):  # noqa: N818 (a state that passes, like queue.Full)
    """The spool takes nothing more now; the sender should try again later."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the spool: everything before it is stored."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are inserted together, and again with the same token if the first try was interrupted."""

    token: str
    segment: int
    start: int
    end: int
    payloads: tuple[bytes, ...]


@dataclass(slots=True, eq=False)
class _Entry:
    """One request on its way to disk; later only the place where it lies."""

    crc: int
    payload: bytes | None
    segment: int = -1
    offset: int = -1
    length: int = 0
    error: Exception | None = None
    durable: threading.Event | None = None
    """Set once the request is on disk (or failed); None for one that is."""


class Spool:
    """A folder of segments and the position up to which they were read."""

    def __init__(self, folder: Path, max_unread_bytes: int, segment_bytes: int = 64 * 1024 * 1024) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._max_unread, self._segment_bytes = folder, max_unread_bytes, segment_bytes
        self._changed = threading.Condition()
        self._pending: list[_Entry] = []
        self._known: dict[tuple[int, int], _Entry] = {}
        self._sizes = segment_sizes(folder)
        state = read_json(folder / "cursor.json") or {}
        self._id: str = state.get("spool") or uuid.uuid4().hex
        self._done = Position(*state.get("done", (min(self._sizes, default=0), 0)))
        self._frozen: tuple[int, int, int] | None = tuple(state["frozen"]) if state.get("frozen") else None
        self._index_recent()
        self._writer = SegmentWriter(folder, max([self._done.segment, *self._sizes]) + 1)
        self._sizes[self._writer.number] = 0
        self._closing = False
        self._save()
        self._appender = threading.Thread(target=self._append_loop, name="spool", daemon=True)
        self._appender.start()

    # --- receiving side ---------------------------------------------------------------------------------------------

    def append(self, payload: bytes) -> bool:
        """Return once the request is on disk; False if it already was.

        Raises:
            SpoolFull: try again later.
        """
        crc = zlib.crc32(payload)
        key = (crc, len(payload))
        with self._changed:
            if self._closing:
                raise SpoolFull("the collector is shutting down")
            known = self._known.get(key)
            if known is None or not self._is_same(known, payload):
                known = None
                if self._unread() > self._max_unread:
                    raise SpoolFull(f"more than {self._max_unread} bytes wait to be written to ClickHouse")
                entry = _Entry(crc, payload, length=len(payload), durable=threading.Event())
                self._known[key] = entry
                self._pending.append(entry)
                self._changed.notify_all()
            else:
                entry = known
            durable = entry.durable
        if durable is not None:
            durable.wait()
        if entry.error is not None:
            raise SpoolFull(f"cannot write to the spool: {entry.error}") from entry.error
        return known is None

    def _append_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                entries, self._pending = self._pending, []
            if not entries:
                return
            self._append_durably(entries)

    def _append_durably(self, entries: list[_Entry]) -> None:
        buffers: list[bytes] = []
        try:
            if self._writer.size >= self._segment_bytes:
                self._roll()
            offset = self._writer.size
            for entry in entries:
                payload = entry.payload or b""
                buffers += (records.header(payload, entry.crc), payload)
                entry.segment, entry.offset = self._writer.number, offset + records.HEADER.size
                offset = entry.offset + len(payload)
            self._writer.append(buffers)
        except OSError as error:
            _LOG.error("cannot write to the spool %s: %s", self._folder, error)
            with self._changed:
                for entry in entries:
                    entry.error = error
                    self._known.pop((entry.crc, entry.length), None)
        with self._changed:
            self._sizes[self._writer.number] = self._writer.size
            for entry in entries:
                entry.payload = None
                if entry.durable is not None:
                    entry.durable.set()
                entry.durable = None
            self._changed.notify_all()

    def _roll(self) -> None:
        fresh = SegmentWriter(self._folder, self._writer.number + 1)
        self._writer.close()
        with self._changed:
            self._writer = fresh
            self._sizes[fresh.number] = 0

    def _is_same(self, known: _Entry, payload: bytes) -> bool:
        if known.payload is not None:
            return known.payload == payload
        try:
            with segment_path(self._folder, known.segment).open("rb") as file:
                return os.pread(file.fileno(), known.length, known.offset) == payload
        except FileNotFoundError:
            return False

    def _index_recent(self) -> None:
        recent = 0
        for number, size in reversed(self._sizes.items()):
            recent += size
            if recent > _KEEP_READ_BYTES:
                return
            data = segment_path(self._folder, number).read_bytes()
            for record in records.scan(data):
                length = record.end - record.start - records.HEADER.size
                place = record.start + records.HEADER.size
                self._known[record.crc, length] = _Entry(record.crc, None, number, place, length)

    # --- writing side -----------------------------------------------------------------------------------------------

    def unread_bytes(self) -> int:
        """Return how many durable bytes were not yet stored in ClickHouse."""
        with self._changed:
            return self._unread()

    def wait_unread(self, least: int, timeout: float) -> bool:
        """Wait until `least` bytes are unread or the spool closes; return whether anything is unread."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread() >= least or self._closing, timeout)
            return self._unread() > 0

    def freeze(self, most_bytes: int) -> Batch | None:
        """Decide the next batch, durably, or return the one that an earlier process decided; None = nothing unread."""
        if self._frozen is not None:
            batch = self._read(self._frozen[0], self._frozen[1], self._frozen[2], None)
            if batch is not None:
                return batch
            _LOG.error("the batch %s is no longer in the spool and is given up", self._frozen)
        while True:
            with self._changed:
                segment, offset = self._done.segment, self._done.offset
                end, active = self._sizes.get(segment, 0), self._writer.number
            batch = self._read(segment, offset, end, most_bytes) if end > offset else None
            if batch is not None:
                self._frozen = (batch.segment, batch.start, batch.end)
                self._save()
                return batch
            if segment >= active:
                return None
            if end > offset:
                _LOG.warning("%s bytes at the end of spool segment %s are no request; skipped", end - offset, segment)
            with self._changed:
                self._done = Position(min(number for number in self._sizes if number > segment), 0)

    def commit(self, batch: Batch) -> None:
        """Remember that a batch is stored, and remove segments that nobody needs any more."""
        with self._changed:
            self._done, self._frozen = Position(batch.segment, batch.end), None
        self._save()
        removed = remove_read(self._folder, batch.segment, _KEEP_READ_SECONDS, _KEEP_READ_BYTES)
        if removed:
            with self._changed:
                for number in removed:
                    self._sizes.pop(number, None)
                self._known = {key: item for key, item in self._known.items() if item.segment not in removed}

    def _read(self, segment: int, start: int, end: int, most_bytes: int | None) -> Batch | None:
        try:
            file = segment_path(self._folder, segment).open("rb")
        except FileNotFoundError:
            return None
        with file, mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as data:
            payloads: list[bytes] = []
            stop = start
            for record in records.scan(data, start):
                if payloads and most_bytes is not None and record.end - start > most_bytes:
                    break
                payloads.append(record.payload(data))
                stop = record.end
        if not payloads:
            return None
        return Batch(f"{self._id}-{segment}-{start}-{stop}", segment, start, stop, tuple(payloads))

    def _unread(self) -> int:
        later = sum(size for number, size in self._sizes.items() if number > self._done.segment)
        return max(0, self._sizes.get(self._done.segment, 0) - self._done.offset) + later

    def _save(self) -> None:
        done = (self._done.segment, self._done.offset)
        write_json(self._folder / "cursor.json", {"spool": self._id, "done": done, "frozen": self._frozen})

    def stop_accepting(self) -> None:
        """Refuse new requests; return once those already taken are on disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._appender.join()

    def close(self) -> None:
        """Stop accepting and close the files."""
        self.stop_accepting()
        self._writer.close()
