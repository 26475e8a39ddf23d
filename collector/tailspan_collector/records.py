"""How one OTLP request lies in a spool segment, and reading a segment back whatever happened to it.

A record is `magic (4) | CRC-32 of the payload (4) | payload length (4) | payload`, little-endian. Bytes that are no
valid record (a torn tail, a flipped bit) are stepped over up to the next valid record, never an error.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = struct.Struct("<4sII")
MAGIC = b"\xf5TS1"


@dataclass(frozen=True, slots=True)
class Record:
    """One valid record: where its header begins, where it ends, and the checksum of its payload."""

    start: int
    end: int
    crc: int

    def payload(self, segment: bytes | mmap.mmap) -> bytes:
        """Copy the bytes of the OTLP request out of its segment."""
        return segment[self.start + HEADER.size : self.end]


def header(payload: bytes, crc: int) -> bytes:
    """Return the header that goes before a payload."""
    return HEADER.pack(MAGIC, crc, len(payload))


def scan(segment: bytes | mmap.mmap, start: int = 0) -> Iterator[Record]:
    """Yield the valid records of a segment from offset `start` on."""
    position = start
    while position + HEADER.size <= len(segment):
        record = _read(segment, position)
        if record is None:
            position = segment.find(MAGIC, position + 1)
            if position < 0:
                return
            continue
        yield record
        position = record.end


def _read(segment: bytes | mmap.mmap, position: int) -> Record | None:
    magic, crc, length = HEADER.unpack_from(segment, position)
    end = position + HEADER.size + length
    if magic != MAGIC or end > len(segment):
        return None
    with memoryview(segment) as view, view[position + HEADER.size : end] as payload:
        return Record(position, end, crc) if zlib.crc32(payload) == crc else None
