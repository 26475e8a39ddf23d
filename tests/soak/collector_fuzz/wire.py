"""Protobuf bytes as a tree of fields, so that a mutation can hit a place that means something.

A field of wire type 2 is taken for a message where the schema says so. Encoding a tree that was not changed gives the
bytes it was made of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)


@dataclass(slots=True)
class Field:
    """One field; `parts` if it is a message, else `payload` (without tag and length)."""

    number: int
    wire: int
    payload: bytes = b""
    parts: list[Field] | None = None
    is_text: bool = False
    length: int | None = None
    """A length to claim instead of the true one."""
    tag: bytes | None = None
    """Bytes to send instead of the true tag."""

    def encode(self) -> bytes:
        """Return the bytes."""
        body = self.payload if self.parts is None else b"".join(part.encode() for part in self.parts)
        tag = varint(self.number << 3 | self.wire) if self.tag is None else self.tag
        if self.wire == LENGTH:
            return tag + varint(len(body) if self.length is None else self.length) + body
        return tag + body


def varint(value: int) -> bytes:
    """Encode a varint of any size."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def parse(body: bytes, descriptor: Any) -> list[Field]:
    """Return the fields of a valid message."""
    found, position = [], 0
    while position < len(body):
        tag, position = _varint(body, position)
        number, wire = tag >> 3, tag & 7
        known = descriptor.fields_by_number.get(number)
        item = Field(number, wire)
        if wire == LENGTH:
            size, position = _varint(body, position)
            payload = body[position : position + size]
            if known is not None and known.message_type is not None:
                item.parts = parse(payload, known.message_type)
            else:
                item.payload, item.is_text = payload, known is not None and known.type == known.TYPE_STRING
            position += size
        else:
            begin = position
            position = _varint(body, position)[1] if wire == VARINT else position + (8 if wire == FIXED64 else 4)
            item.payload = body[begin:position]
        found.append(item)
    return found


def every(fields: list[Field]) -> Iterator[tuple[list[Field], int]]:
    """Yield the place of every field: the list it is in, and its index there."""
    for index, item in enumerate(fields):
        yield fields, index
        if item.parts is not None:
            yield from every(item.parts)


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = body[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


TOO_LONG = (b"\xff" * 9 + b"\x01", b"\xff" * 10 + b"\x01", b"\x80" * 20)
HUGE = (*(varint(2**power) for power in (31, 32, 62, 63, 64, 69)), *TOO_LONG)
FIXED = tuple(struct.pack("<Q", value) for value in (0, 1, 2**63 - 1, 2**63, 2**64 - 1))
