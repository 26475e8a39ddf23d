"""Random W3C trace and span ids.

Strong randomness from the kernel: never seeded by time, safe across threads and fork. Rings and the agent's span
builder take theirs from the same source, many at a time.
Source: W3C Trace Context, level 2.
"""

from __future__ import annotations

import os
import struct


def new_span_id() -> int:
    """Return a non-zero 64-bit id."""
    return int.from_bytes(os.urandom(8), "big") or new_span_id()


def new_trace_id() -> int:
    """Return a non-zero 128-bit id."""
    return int.from_bytes(os.urandom(16), "big") or new_trace_id()


_LENGTH = 55
_numbers = struct.Struct(">BQQQB").unpack


def parse_traceparent(header: str) -> tuple[int, int, int] | None:
    """Return (trace id, span id, flags) of a `traceparent` header, or None when it is not valid."""
    header = header.strip()
    if len(header) < _LENGTH or not header[2] == header[35] == header[52] == "-":
        return None
    try:
        version, high, low, span_id, flags = _numbers(bytes.fromhex(header[:_LENGTH].replace("-", "")))
    except (ValueError, struct.error):  # not hexadecimal; or fewer digits, with dashes or blanks between them
        return None
    rest = header[_LENGTH:]
    if version == 0xFF or (rest and (version == 0 or rest[0] != "-")):
        return None
    if not (high or low) or not span_id:
        return None
    return high << 64 | low, span_id, flags


def format_traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return the `traceparent` header of a span."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags & 0xFF:02x}"
