"""What a span says about how many it stands for, once only a share of the traces is passed on.

A trace kept for its share carries the threshold of OpenTelemetry's consistent probability sampling in its tracestate
(`ot=th:…`): the share of all 56-bit random values that lie below it was left out. Backends count such a span as
1/share. Spans of ours carry the same as `tailspan.weight`, which multiplies with what the worker's own sampling says.

Source: OpenTelemetry specification, "TraceState: Probability Sampling" and "Probability Sampling in TraceState".
"""

from __future__ import annotations

import re
from math import floor, log2

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes

_BITS = 56
_EVERY = 1 << _BITS
_DIGITS = 4
"""Digits of precision after leading `f`s, as the specification recommends."""
_MEMBER = re.compile(r"^\s*ot=")
_THRESHOLD = re.compile(r"[0-9a-f]{1,14}")


def threshold(share: float) -> int:
    """Return the least random value that is kept, of 2**56; exact to four hexadecimal digits and so in every `th`."""
    if share <= 0:
        return _EVERY
    leading = floor(-log2(share) / 4) if share < 1 else 0
    unit = 1 << max(0, _BITS - 4 * (_DIGITS + leading))
    return min(_EVERY - unit, round((1 - share) * _EVERY / unit) * unit)


def adjust(span: Span, least: int) -> None:
    """Say in a span that only random values from `least` on were kept."""
    before = _threshold_of(span.trace_state)
    now = max(before, least)
    span.trace_state = _with_threshold(span.trace_state, now)
    factor = (_EVERY - before) / (_EVERY - now)
    keys = {item.key for item in span.attributes}
    if factor == 1 or not keys & {attributes.ROLE, attributes.WEIGHT}:
        return
    for item in span.attributes:
        if item.key == attributes.WEIGHT:
            if item.value.WhichOneof("value") == "double_value":
                item.value.double_value *= factor
            return
    span.attributes.add(key=attributes.WEIGHT).value.double_value = factor


def _threshold_of(trace_state: str) -> int:
    for part in _parts(_split(trace_state)[0]):
        if part.startswith("th:") and _THRESHOLD.fullmatch(part[3:]):
            return int(part[3:].ljust(14, "0"), 16)
    return 0


def _with_threshold(trace_state: str, least: int) -> str:
    own, others = _split(trace_state)
    digits = f"{least:014x}".rstrip("0") or "0"
    parts = [f"th:{digits}", *(part for part in _parts(own) if not part.startswith("th:"))]
    return ",".join([f"ot={';'.join(parts)}", *others])


def _split(trace_state: str) -> tuple[str, list[str]]:
    """Return OpenTelemetry's member without its key, and the other members."""
    members = [member.strip() for member in trace_state.split(",") if member.strip()]
    own = [member for member in members if _MEMBER.match(member)]
    return (own[0].partition("=")[2] if own else ""), [member for member in members if not _MEMBER.match(member)]


def _parts(own: str) -> list[str]:
    return [part for part in own.split(";") if part]
