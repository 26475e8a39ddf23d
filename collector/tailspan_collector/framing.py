"""Cheap check that bytes are an OTLP export request, without decoding the spans.

In: the bytes of an export request (traces, metrics and logs alike: all are `repeated message = 1`).
Units: walks the top level only, one step for each resource, so its cost does not grow with the spans.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_RESOURCES = 0x0A  # field 1 as a message
_LARGEST_FIELD = 2**29 - 1
# A hostile request could be 32 million empty resources, and a walk over them many seconds.
_MOST_FIELDS = 100_000


def is_export_request(body: bytes) -> bool:
    """Whether the top level is well-formed protobuf with the resources as messages, and at most 100,000 of them."""
    position, end = 0, len(body)
    try:
        for _ in range(_MOST_FIELDS):
            if position >= end:
                return position == end
            if body[position] == _RESOURCES:
                length, position = read_varint(body, position + 1)
                position += length
            else:
                position = _skip_unknown(body, position)
    except ValueError:
        return False
    return position == end


def _skip_unknown(body: bytes, position: int) -> int:
    """Return the position after a field that is not the resources.

    Raises:
        ValueError: there is no such field.
    """
    tag, position = read_varint(body, position)
    field, wire_type = tag >> 3, tag & 7
    if not 1 < field <= _LARGEST_FIELD:
        raise ValueError("no field of a request")
    if wire_type == _VARINT:
        return read_varint(body, position)[1]
    if wire_type == _LENGTH:
        length, position = read_varint(body, position)
        return position + length
    if wire_type == _FIXED64:
        return position + 8
    if wire_type == _FIXED32:
        return position + 4
    raise ValueError("no wire type of protobuf 3")


def is_valid_traces_request(body: bytes) -> bool:
    """Decode a whole traces request to see whether it is valid; only used once ClickHouse could not decode it.

    Stricter than ClickHouse, which takes strings that are not UTF-8.
    """
    try:
        ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return False
    return True


def read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Read a protobuf varint; return it and the position after it.

    Raises:
        ValueError: the varint is cut off or longer than 10 bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(body):
            break
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("varint is cut off")


def write_varint(value: int) -> bytes:
    """Encode a length as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
