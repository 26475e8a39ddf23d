"""Random W3C trace and span ids.

Strong randomness from the kernel: never seeded by time, safe across threads and fork. Rings and the agent's span
builder take theirs from the same source, many at a time.
Source: W3C Trace Context, level 2.
"""

from __future__ import annotations

import os
import re


def new_span_id() -> int:
    """Return a non-zero 64-bit id."""
    return int.from_bytes(os.urandom(8), "big") or new_span_id()


def new_trace_id() -> int:
    """Return a non-zero 128-bit id."""
    return int.from_bytes(os.urandom(16), "big") or new_trace_id()


_TRACEPARENT = re.compile(r"^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")


def parse_traceparent(header: str) -> tuple[int, int, int] | None:
    """Return (trace id, span id, flags) of a `traceparent` header, or None when it is not valid."""
    match = _TRACEPARENT.match(header.strip().lower())
    if match is None:
        return None
    version, trace, span, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    return trace_id, span_id, int(flags, 16)


def format_traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return the `traceparent` header of a span."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags & 0xFF:02x}"
