"""The writing end of a ring: a file in shared memory with one writing thread and one reading process.

Errors: a full ring drops the record and counts it; nothing blocks.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tailspan.recorder import layout
from tailspan.recorder.identity import command_name, process_start_ticks
from tailspan.recorder.layout import HEADER_BYTES, SLOT_BYTES, Kind

MAX_STRINGS = 4096
"""Different strings one ring may register; further ones read as `OVERFLOW_STRING`."""
OVERFLOW_STRING = "(too many names)"
MAX_TEXT_BYTES = 240
"""Longest text attribute; longer ones are cut."""
MAX_NAME_BYTES = 1000
"""Longest name that a ring registers; longer ones are cut."""
IDS_AT_ONCE = 128
"""Requests for which a ring fetches random bytes at a time."""

BEGIN, QUEUED, STEP = int(Kind.BEGIN), int(Kind.QUEUED), int(Kind.STEP)
TEXT_ATTRIBUTE, STRING = int(Kind.TEXT_ATTRIBUTE), int(Kind.STRING)
_ids_of = struct.Struct("<QQQ").iter_unpack
_pack_record = layout.RECORD.pack_into
_pack_double = layout.DOUBLE_RECORD.pack_into
_pack_chunk = layout.CHUNK_RECORD.pack_into
_pack_begin = layout.BEGIN_RECORD.pack_into
_pack_queued = layout.QUEUED_RECORD.pack_into
_pack_step = layout.STEP_RECORD.pack_into


class RingWriter:
    """The writing end; used by one thread only, so it needs no lock.

    Memory: `HEADER_BYTES + slots * SLOT_BYTES`, touched as it fills; the string table is bounded by `MAX_STRINGS`.
    """

    __slots__ = (
        "_descriptor", "_dropped", "_dropped_requests", "_head", "_ids", "_limit", "_map", "_mask",
        "_renew_at", "_request_limit", "_slots", "_strings", "path",
    )  # fmt: skip

    def __init__(self, path: Path, slots: int, thread_number: int) -> None:
        """Create the file (mode 0600) with `slots` records, a power of two.

        Raises:
            OSError: no room, no permission, too many open files.
        """
        self.path = path
        size = HEADER_BYTES + slots * SLOT_BYTES
        # Kept open: the lock on it tells the agent, in whatever PID namespace, that this process lives. A record lock
        # belongs to the process alone, so a forked child does not prolong it.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Real pages now: a store into a page that a full tmpfs cannot give would kill the process with SIGBUS.
            os.posix_fallocate(self._descriptor, 0, size)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._map = mmap.mmap(self._descriptor, size)
        except OSError:
            os.close(self._descriptor)
            path.unlink(missing_ok=True)
            raise
        self._slots = slots
        self._mask = slots - 1
        self._head = 0
        self._limit = slots
        self._request_limit = slots - slots // 4
        self._dropped = 0
        self._dropped_requests = 0
        self._renew_at = slots // 2
        self._ids: Iterator[tuple[int, int, int]] = iter(())
        self._strings: dict[str, int] = {}
        layout.HEADER.pack_into(
            self._map, 0, b"\0" * 8, layout.VERSION, slots, os.getpid(), thread_number,
            process_start_ticks(os.getpid()), time.monotonic_ns(), time.time_ns(), command_name(),
        )  # fmt: skip
        # The magic comes last: a reader that sees it sees a complete header.
        self._map[0:8] = layout.MAGIC

    def record(
        self, kind: int, flags: int, name: int, key: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0
    ) -> None:
        """Append one record; drop and count it when the agent is a whole ring behind."""
        head = self._head
        if head >= self._limit and not self._has_room(head):
            return
        _pack_record(
            self._map, HEADER_BYTES + (head & self._mask) * SLOT_BYTES, kind, flags, name, key, a, b, c, d, e, head + 1
        )
        self._head = head + 1

    def double(self, kind: int, flags: int, name: int, key: int, value: float) -> None:
        """Append one record whose first value is a double."""
        head = self._head
        if head >= self._limit and not self._has_room(head):
            return
        _pack_double(
            self._map, HEADER_BYTES + (head & self._mask) * SLOT_BYTES, kind, flags, name, key, value, 0, 0, 0, 0,
            head + 1,
        )  # fmt: skip
        self._head = head + 1

    def begin(
        self, name: str, attributes: str, key: int, begin_ns: int, trace_high: int, trace_low: int, parent: int,
        flags: int,
    ) -> bool:  # fmt: skip
        """Append the BEGIN record of a request if there is room for a new one; return whether there was."""
        head = self._head
        if head >= self._request_limit and not self._takes_request(head):
            return False
        name_id = self.string(name)
        attributes_id = self.string(attributes) if attributes else 0
        head = self._head
        if head >= self._limit and not self._has_room(head):
            return True
        _pack_begin(
            self._map, HEADER_BYTES + (head & self._mask) * SLOT_BYTES, BEGIN, flags, name_id, key, begin_ns,
            trace_high, trace_low, parent, attributes_id, head + 1,
        )  # fmt: skip
        self._head = head + 1
        return True

    def queued(self, engine: str, flags: int, key: int, at_ns: int, prompt_tokens: int, response_id: bytes) -> None:
        """Append one QUEUED record; the id has at most `QUEUED_ID_BYTES`."""
        identifier = self._strings.get(engine) if self._head <= self._renew_at else None
        if identifier is None:
            identifier = self.string(engine)
        head = self._head
        if head >= self._limit and not self._has_room(head):
            return
        _pack_queued(
            self._map, HEADER_BYTES + (head & self._mask) * SLOT_BYTES, QUEUED, flags, identifier, key, at_ns,
            prompt_tokens, response_id, head + 1,
        )  # fmt: skip
        self._head = head + 1

    def step(
        self, flags: int, engine: int, number: int, begin_ns: int, end_ns: int, prefill_tokens: int,
        decode_tokens: int, requests: int, waiting: int, preempted: int, kv_usage: float,
    ) -> None:  # fmt: skip
        """Append one STEP record."""
        head = self._head
        if head >= self._limit and not self._has_room(head):
            return
        _pack_step(
            self._map, HEADER_BYTES + (head & self._mask) * SLOT_BYTES, STEP, flags, engine, number, begin_ns,
            end_ns, prefill_tokens, decode_tokens, requests, waiting, preempted, kv_usage, head + 1,
        )  # fmt: skip
        self._head = head + 1

    def chunk(self, kind: int, flags: int, name: int, key: int, data: bytes) -> None:
        """Append one record with at most `CHUNK_BYTES` of text."""
        head = self._head
        if head >= self._limit and not self._has_room(head):
            return
        _pack_chunk(self._map, HEADER_BYTES + (head & self._mask) * SLOT_BYTES, kind, flags, name, key, data, head + 1)
        self._head = head + 1

    def text(self, key: int, name: int, value: str) -> None:
        """Append a text attribute of a request in chunks of 40 bytes, at most `MAX_TEXT_BYTES`."""
        data = value.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
        if len(data) <= layout.CHUNK_BYTES:
            self.chunk(TEXT_ATTRIBUTE, 1, name, key, data)
            return
        chunks = layout.chunks_of(len(data))
        for number in range(chunks):
            part = data[number * layout.CHUNK_BYTES : (number + 1) * layout.CHUNK_BYTES]
            self.chunk(TEXT_ATTRIBUTE, number << 1 | (number == chunks - 1), name, key, part)

    def note(
        self, kind: int, flags: int, name: str, key: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0
    ) -> None:
        """Append one record with a registered name."""
        identifier = self._strings.get(name) if self._head <= self._renew_at else None
        if identifier is None:
            identifier = self.string(name)
        head = self._head
        if head >= self._limit and not self._has_room(head):
            return
        _pack_record(
            self._map, HEADER_BYTES + (head & self._mask) * SLOT_BYTES, kind, flags, identifier, key, a, b, c, d, e,
            head + 1,
        )  # fmt: skip
        self._head = head + 1

    def new_ids(self) -> tuple[int, int, int]:
        """Return three times 64 random bits that are not all zero: trace id high and low, span id.

        Strong randomness from the kernel, fetched for many requests at a time; only this thread reads the rest.
        """
        while True:
            for ids in self._ids:
                if 0 not in ids:
                    return ids
            self._ids = _ids_of(os.urandom(24 * IDS_AT_ONCE))

    def reserve(self, records: int) -> bool:
        """Return whether as many more records fit; count them as dropped if not."""
        head = self._head + records - 1
        return head < self._limit or self._has_room(head, records)

    def drop(self, records: int) -> None:
        """Count records that were not written."""
        self._dropped += records
        struct.pack_into("<Q", self._map, layout.DROPPED_OFFSET, self._dropped)

    def string(self, value: str, max_bytes: int = MAX_NAME_BYTES) -> int:
        """Return the id of a string in this ring, cut at `max_bytes`; the first use writes its bytes."""
        if self._head <= self._renew_at:
            known = self._strings.get(value)
            if known is not None:
                return known
        else:
            # Strings are written again every half lap, so that what a dead worker leaves behind can be read by itself.
            self._strings.clear()
            self._renew_at = self._head + self._slots // 2
        return self._register(value, max_bytes)

    def close(self) -> None:
        """Give up the file; only for a ring that no thread writes to any more."""
        self._map.close()
        os.close(self._descriptor)

    def mark_closed(self) -> None:
        """Tell the reader that the process ended in an orderly way."""
        struct.pack_into("<Q", self._map, layout.CLOSED_OFFSET, 1)

    def _register(self, value: str, max_bytes: int) -> int:
        if len(self._strings) >= MAX_STRINGS:
            return self._strings.get(OVERFLOW_STRING, 0)
        if len(self._strings) == MAX_STRINGS - 1:
            value = OVERFLOW_STRING
        data = value.encode("utf-8", "replace")[:max_bytes]
        chunks = layout.chunks_of(len(data))
        if self._head + chunks > self._limit and not self._has_room(self._head + chunks - 1):
            return 0
        identifier = len(self._strings) + 1
        for number in range(chunks):
            part = data[number * layout.CHUNK_BYTES : (number + 1) * layout.CHUNK_BYTES]
            self.chunk(STRING, number, identifier, len(data), part)
        self._strings[value] = identifier
        return identifier

    def _takes_request(self, head: int) -> bool:
        """Whether there is room for a new request; else count it as dropped.

        The last quarter of the ring is kept for requests that have begun, so that they can end whole.
        """
        self._look()
        if head < self._request_limit:
            return True
        self._dropped_requests += 1
        struct.pack_into("<Q", self._map, layout.DROPPED_REQUESTS_OFFSET, self._dropped_requests)
        return False

    def _has_room(self, head: int, records: int = 1) -> bool:
        self._look()
        if head < self._limit:
            return True
        self.drop(records)
        return False

    def _look(self) -> None:
        """Learn how far the agent has read."""
        (tail,) = struct.unpack_from("<Q", self._map, layout.TAIL_OFFSET)
        self._limit = tail + self._slots
        self._request_limit = self._limit - self._slots // 4
