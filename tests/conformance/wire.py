"""Protobuf by hand."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Encode a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, payload: bytes) -> bytes:
    """Return a field of wire type 2."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload
