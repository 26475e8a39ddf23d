"""Spans as the bytes of OTLP messages, written field by field: the SDK's encoder makes an object of every attribute.

In: `Span`s. Out: for each the bytes of `ScopeSpans.spans`, tag included, and of many an `ExportTraceServiceRequest`.
A test compares all of it with what the SDK's encoder makes of the same spans.
Source: opentelemetry-proto 1.x (trace.proto, common.proto, resource.proto); protobuf, "Encoding".
Errors: an attribute value that OTLP cannot hold is left out, as by the SDK.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from tailspan.agent.span import Link, Span, readable

MAX_CACHED = 8192
"""Texts and keys of each kind whose encoding is kept, because most come again and again; a few MB when full."""
MAX_CACHED_ARRAYS = 128
"""Arrays of texts whose encoding is kept, because a model has the same parts in each of its steps."""

# A tag is the field's number << 3 | wire type: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = b"\x0a", b"\x12", b"\x12"
_NAME, _ATTRIBUTES, _LINKS, _STATUS, _LINK_ATTRIBUTES = b"\x2a", b"\x4a", b"\x6a", b"\x7a", b"\x22"
_TRACE_ID, _SPAN_ID, _PARENT_ID = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_KIND_AND_TIMES = struct.Struct("<2sBQBQ")
_SERVER, _INTERNAL, _BEGIN, _END = b"\x30\x02", b"\x30\x01", 0x39, 0x41
_UNSET, _ERROR = b"\x7a\x00", b"\x18\x02"
# SpanFlags: whether the parent, or the linked span, is another process's (bit 9), and that this is known (bit 8).
_LOCAL, _REMOTE = b"\x85\x01\x00\x01\x00\x00", b"\x85\x01\x00\x03\x00\x00"
_LINK_FLAGS = b"\x35\x00\x03\x00\x00"
_DOUBLE = struct.Struct("<d")
_DOUBLE_ITEM = b"\x0a\x09\x21"
"""What precedes the eight bytes of a floating point number in an array."""
_MIN_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1
_MASK = (1 << 64) - 1
_PAIR = 1 << 14
_NEXT = [bytes((value & 127 | 128, value >> 7 | 128)) for value in range(_PAIR)]
_LAST = [bytes((value,)) if value < 128 else bytes((value & 127 | 128, value >> 7)) for value in range(_PAIR)]
"""The two bytes of 14 bits of a varint, where more follow and at its end."""


def pack(span: Span) -> bytes:
    """Return the encoded span."""
    parts = [
        _TRACE_ID,
        span.trace_id.to_bytes(16, "big"),
        _SPAN_ID,
        span.span_id.to_bytes(8, "big"),
        _name(span.name),
        _KIND_AND_TIMES.pack(
            _SERVER if span.is_entry else _INTERNAL, _BEGIN, span.begin_ns & _MASK, _END, span.end_ns & _MASK
        ),
    ]
    if span.parent_id:
        parts += _PARENT_ID, span.parent_id.to_bytes(8, "big")
    _add_attributes(parts.append, span.attributes)
    if span.links:
        parts += map(_link, span.links)
    parts.append(_UNSET if span.error is None else _status(span.error))
    parts.append(_REMOTE if span.is_entry and span.parent_id else _LOCAL)
    body = b"".join(parts)
    return _SPANS + _varint(len(body)) + body


def message(resource: Resource, spans: Sequence[bytes]) -> bytes:
    """Return an ExportTraceServiceRequest of encoded spans that have one resource."""
    fields, scope = _envelope(resource)
    return _delimited(_RESOURCE_SPANS, fields + _delimited(_SCOPE_SPANS, scope + b"".join(spans)))


def _add_attributes(add: Callable[[bytes], None], attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        kind = value.__class__
        if kind is str:
            add(_text(_ATTRIBUTES, key, value))
        elif kind is int and _MIN_INT <= value <= _MAX_INT:
            number = _varint(value & _MASK)
            add(_heads(key)[len(number)])
            add(number)
        elif kind is float:
            add(_double_head(key))
            add(_DOUBLE.pack(value))
        elif (encoded := _value(value)) is not None:
            add(_key_value(_ATTRIBUTES, key, encoded))


@lru_cache(MAX_CACHED)
def _name(name: str) -> bytes:
    return _delimited(_NAME, _utf8(name))


@lru_cache(MAX_CACHED)
def _text(tag: bytes, key: str, value: str) -> bytes:
    return _key_value(tag, key, _delimited(b"\x0a", _utf8(value)))


@lru_cache(MAX_CACHED)
def _heads(key: str) -> list[bytes]:
    """Return what precedes an integer of 0, 1, ... 10 bytes under a key."""
    name = _delimited(b"\x0a", _utf8(key))
    return [
        b"".join((_ATTRIBUTES, _varint(len(name) + 3 + size), name, b"\x12", _varint(1 + size), b"\x18"))
        for size in range(11)
    ]


@lru_cache(MAX_CACHED)
def _double_head(key: str) -> bytes:
    """Return what precedes the eight bytes of a floating point number under a key."""
    return _key_value(_ATTRIBUTES, key, b"\x21" + bytes(_DOUBLE.size))[: -_DOUBLE.size]


@lru_cache(16)
def _envelope(resource: Resource) -> tuple[bytes, bytes]:
    """Return the fields of ResourceSpans and of ScopeSpans without the spans, as the SDK encodes them."""
    (resource_spans,) = encode_spans([readable(Span(resource, "", 1, 1, 0, 0, {}))]).resource_spans
    (scope_spans,) = resource_spans.scope_spans
    scope_spans.ClearField("spans")
    scope = scope_spans.SerializeToString()
    resource_spans.ClearField("scope_spans")
    return resource_spans.SerializeToString(), scope


def _value(value: object) -> bytes | None:
    """Return an AnyValue, None where OTLP has no such value."""
    if isinstance(value, str):
        return _delimited(b"\x0a", _utf8(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & _MASK) if _MIN_INT <= value <= _MAX_INT else None
    if isinstance(value, float):
        return b"\x21" + _DOUBLE.pack(value)
    if isinstance(value, tuple):
        return _array(value)
    return None


def _array(values: tuple[object, ...]) -> bytes:
    kinds = set(map(type, values))
    if kinds == {float}:
        return _delimited(b"\x2a", b"".join([_DOUBLE_ITEM + _DOUBLE.pack(value) for value in values]))
    return _texts(values) if kinds == {str} else _any_values(values)


def _any_values(values: tuple[object, ...]) -> bytes:
    return _delimited(b"\x2a", b"".join([_delimited(b"\x0a", _value(item) or b"") for item in values]))


_texts = lru_cache(MAX_CACHED_ARRAYS)(_any_values)


def _key_value(tag: bytes, key: str, value: bytes) -> bytes:
    return _delimited(tag, _delimited(b"\x0a", _utf8(key)) + _delimited(b"\x12", value))


def _link(link: Link) -> bytes:
    parts = [_TRACE_ID, link.trace_id.to_bytes(16, "big"), _SPAN_ID, link.span_id.to_bytes(8, "big")]
    for key, value in link.attributes.items():
        if isinstance(value, str):
            parts.append(_text(_LINK_ATTRIBUTES, key, value))
        elif (encoded := _value(value)) is not None:
            parts.append(_key_value(_LINK_ATTRIBUTES, key, encoded))
    return _delimited(_LINKS, b"".join((*parts, _LINK_FLAGS)))


def _status(error: str) -> bytes:
    return _delimited(_STATUS, _delimited(b"\x12", _utf8(error)) + _ERROR)


def _delimited(tag: bytes, data: bytes) -> bytes:
    return b"".join((tag, _varint(len(data)), data))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _varint(value: int) -> bytes:
    """Return a number below 2^64, seven bits a byte, low ones first."""
    if value < _PAIR:
        return _LAST[value]
    low = b""
    while value >= _PAIR:
        low += _NEXT[value % _PAIR]
        value //= _PAIR
    return low + _LAST[value]
