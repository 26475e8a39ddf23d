"""How one OTLP request lies in a segment: so that a range of records is itself what ClickHouse reads.

A record is one message of ClickHouse's `Protobuf` format: its length, then an unknown field, which every protobuf
decoder skips, with what the spool needs to know, then the request as it came:

    length of the rest, a varint of 5 bytes | tag of field 2^29-1, 5 bytes | length of the header, 1 byte
    | xxh3 of the request, 8 | received_ns, 8 | CRC-32 of all of the above and the peer, 4 | peer | the request

Numbers are little-endian. The tag is also the mark by which reading finds the next record after damage: bytes that are
no valid record are a `Gap`, never an error.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from tailspan_collector.spool.interfaces import Received

_LENGTH_BYTES = 5
MAGIC = b"\xfa\xff\xff\xff\x0f"
_HEADER = struct.Struct("<5s5sBQQ")
_CRC = struct.Struct("<I")
_FIXED = _HEADER.size + _CRC.size
_FIXED_IN_FIELD = 8 + 8 + _CRC.size
_LONGEST_PEER = 100

Bytes = bytes | mmap.mmap


@dataclass(frozen=True, slots=True)
class Record:
    """A valid record: offsets of its begin, of the request and of its end; xxh3 of the request; when it came."""

    start: int
    payload_start: int
    end: int
    digest: int
    received_ns: int

    def received(self, data: bytes | memoryview, base: int = 0) -> Received:
        """Copy the request out of `data`, whose first byte lies at offset `base`."""
        peer = data[self.start + _FIXED - base : self.payload_start - base]
        payload = bytes(data[self.payload_start - base : self.end - base])
        return Received(payload, str(peer, "utf-8", "replace"), self.received_ns)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are no valid record."""

    start: int
    end: int


def digest(payload: bytes) -> int:
    """Return the checksum of a request, which is also what a request that is sent again is looked up by."""
    return int(xxh3_64_intdigest(payload))


def header(payload_bytes: int, payload_digest: int, received_ns: int, peer: str) -> bytes:
    """Return what goes before the request."""
    sender = peer.encode("utf-8", "replace")[:_LONGEST_PEER]
    rest = _FIXED - _LENGTH_BYTES + len(sender) + payload_bytes
    if rest >> 35:
        raise ValueError(f"a request of {payload_bytes} bytes does not fit into a record")
    length = bytes(
        (rest & 127 | 128, rest >> 7 & 127 | 128, rest >> 14 & 127 | 128, rest >> 21 & 127 | 128, rest >> 28)
    )
    begin = _HEADER.pack(length, MAGIC, _FIXED_IN_FIELD + len(sender), payload_digest, received_ns)
    return begin + _CRC.pack(zlib.crc32(sender, zlib.crc32(begin))) + sender


def scan(data: Bytes, start: int, end: int, verify: bool) -> Iterator[Record | Gap]:
    """Yield what lies between two offsets, without a hole; `verify` compares every request with its checksum."""
    position = start
    while position < end:
        record = _read(data, position, end)
        if record is None:
            found = data.find(MAGIC, position + _LENGTH_BYTES + 1, end)
            while found >= 0 and _read(data, found - _LENGTH_BYTES, end) is None:
                found = data.find(MAGIC, found + 1, end)
            begin, position = position, end if found < 0 else found - _LENGTH_BYTES
            yield Gap(begin, position)
            continue
        yield record if not verify or _is_intact(record, data) else Gap(record.start, record.end)
        position = record.end


def read_header(data: Bytes, position: int) -> Record | None:
    """Return the record that begins at an offset, whether or not all of it is in `data`; None if none does."""
    return _read(data, position, 1 << 62)


def _read(data: Bytes, position: int, end: int) -> Record | None:
    if position + _FIXED > min(end, len(data)):
        return None
    length, magic, in_field, payload_digest, received_ns = _HEADER.unpack_from(data, position)
    if magic != MAGIC or in_field < _FIXED_IN_FIELD:
        return None
    payload_start = position + _FIXED + in_field - _FIXED_IN_FIELD
    stop = position + _LENGTH_BYTES + _rest(length)
    if not payload_start <= stop <= end:
        return None
    crc = zlib.crc32(data[position + _FIXED : payload_start], zlib.crc32(data[position : position + _HEADER.size]))
    if crc != _CRC.unpack_from(data, position + _HEADER.size)[0]:
        return None
    return Record(position, payload_start, stop, payload_digest, received_ns)


def _rest(length: bytes) -> int:
    return (
        length[0] & 127 | (length[1] & 127) << 7 | (length[2] & 127) << 14 | (length[3] & 127) << 21 | length[4] << 28
    )


def _is_intact(record: Record, data: Bytes) -> bool:
    with memoryview(data) as view, view[record.payload_start : record.end] as payload:
        return bool(xxh3_64_intdigest(payload) == record.digest)
