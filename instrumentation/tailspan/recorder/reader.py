"""The reading end of a ring: `RingReader` for the agent, `read_history` for a worker that is gone.

Errors: `ValueError` for a file that is not, or not yet, a ring.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from tailspan.recorder import layout
from tailspan.recorder.identity import process_start_ticks
from tailspan.recorder.layout import HEADER_BYTES, SLOT_BYTES


@dataclass(frozen=True, slots=True)
class RingHeader:
    """Who writes a ring."""

    slots: int
    pid: int
    thread_number: int
    process_start_ticks: int
    anchor_mono_ns: int
    anchor_wall_ns: int
    command: str


class RingReader:
    """The reading end; one process at a time.

    A record is handed out only when the previous `read` already saw it complete: on processors that may show the
    sequence number before the rest of the slot, the stores have settled by then.
    """

    __slots__ = ("_descriptor", "_map", "_seen", "_tail", "header", "path")

    def __init__(self, path: Path) -> None:
        """Map an existing ring; raises `ValueError` when it is not (yet) a complete one."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._descriptor, 0)
            self.header, self._tail = self._check()
        except ValueError:
            os.close(self._descriptor)
            raise
        self._seen: int = self._tail

    def _check(self) -> tuple[RingHeader, int]:
        tail: int = 0
        header = _header(self.path, self._map[:HEADER_BYTES], len(self._map))
        (tail,) = struct.unpack_from("<Q", self._map, layout.TAIL_OFFSET)
        return header, tail

    def read(self) -> list[bytes]:
        """Return the settled records as 64-byte slots, oldest first, and give their room back to the writer."""
        records = self._peek(self._tail, self._seen)
        self._tail += len(records)
        if records:
            struct.pack_into("<Q", self._map, layout.TAIL_OFFSET, self._tail)
        self._seen = self._scan(max(self._seen, self._tail))
        return records

    @property
    def pending(self) -> bool:
        """Whether the last `read` saw records that it has not handed out yet."""
        return self._seen > self._tail

    @property
    def dropped(self) -> int:
        """Records that the writer had to drop because the ring was full."""
        (dropped,) = struct.unpack_from("<Q", self._map, layout.DROPPED_OFFSET)
        return int(dropped)

    @property
    def dropped_requests(self) -> int:
        """Requests that the writer left out as a whole."""
        (dropped,) = struct.unpack_from("<Q", self._map, layout.DROPPED_REQUESTS_OFFSET)
        return int(dropped)

    @property
    def alive(self) -> bool:
        """Whether the writing process lives: it holds the lock, which the kernel knows across PID namespaces.

        A process that opened and closed its own ring has lost the lock; then its entry in /proc counts.
        """
        # struct flock of fcntl(2): type, whence, start, length, pid.
        question = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_GETLK, question)
        kind: int = struct.unpack_from("h", answer)[0]
        if kind != fcntl.F_UNLCK:
            return True
        ticks = self.header.process_start_ticks
        return ticks != 0 and process_start_ticks(self.header.pid) == ticks

    @property
    def closed(self) -> bool:
        """Whether the writer said good-bye."""
        (closed,) = struct.unpack_from("<Q", self._map, layout.CLOSED_OFFSET)
        return bool(closed)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
        os.close(self._descriptor)

    def _scan(self, position: int) -> int:
        slots, mask = self.header.slots, self.header.slots - 1
        while position < self._tail + slots:
            offset = HEADER_BYTES + (position & mask) * SLOT_BYTES + SLOT_BYTES - 8
            if int.from_bytes(self._map[offset : offset + 8], "little") != position + 1:
                break
            position += 1
        return position

    def _peek(self, begin: int, end: int) -> list[bytes]:
        mask = self.header.slots - 1
        records = []
        for position in range(begin, end):
            offset = HEADER_BYTES + (position & mask) * SLOT_BYTES
            records.append(self._map[offset : offset + SLOT_BYTES])
        return records


def read_history(path: Path) -> tuple[RingHeader, list[bytes], int]:
    """Return header, every record that the file still holds, oldest first, and the records dropped; changes nothing.

    For a ring whose process and agent are gone, possibly copied from another machine.

    Raises:
        ValueError: the file is no ring.
    """
    data = path.read_bytes()
    header = _header(path, data[:HEADER_BYTES], len(data))
    slots = header.slots
    found = []
    for slot in range(slots):
        record = data[HEADER_BYTES + slot * SLOT_BYTES : HEADER_BYTES + (slot + 1) * SLOT_BYTES]
        number = int.from_bytes(record[-8:], "little")
        if number and (number - 1) % slots == slot:
            found.append((number, record))
    (dropped,) = struct.unpack_from("<Q", data, layout.DROPPED_OFFSET)
    return header, [record for _, record in sorted(found)], int(dropped)


def _header(path: Path, page: bytes, size: int) -> RingHeader:
    if len(page) < HEADER_BYTES or page[:8] != layout.MAGIC:
        raise ValueError(f"{path} is not a complete ring")
    _, version, slots, pid, thread, ticks, mono, wall, command = layout.HEADER.unpack_from(page)
    if version != layout.VERSION or size != HEADER_BYTES + slots * SLOT_BYTES:
        raise ValueError(f"{path} has ring version {version}, or was cut short; this is version {layout.VERSION}")
    return RingHeader(slots, pid, thread, ticks, mono, wall, command.rstrip(b"\0").decode("utf-8", "replace"))
