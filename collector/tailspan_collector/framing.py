"""Cheap check that bytes are an OTLP export request, without decoding the spans.

In: the bytes of an ExportTraceServiceRequest (also logs and metrics: all are `repeated message = 1`).
Units: walks the top level only, one step for each ResourceSpans, so its cost does not grow with the spans.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def is_export_request(body: bytes) -> bool:
    """Whether the top level is well-formed protobuf with `resource_spans` as a message field."""
    position, end = 0, len(body)
    try:
        while position < end:
            tag, position = read_varint(body, position)
            field, wire_type = tag >> 3, tag & 7
            if field == 0 or (field == 1 and wire_type != _LENGTH):
                return False
            if wire_type == _LENGTH:
                length, position = read_varint(body, position)
                position += length
            elif wire_type == _VARINT:
                _, position = read_varint(body, position)
            elif wire_type == _FIXED64:
                position += 8
            elif wire_type == _FIXED32:
                position += 4
            else:
                return False
    except ValueError:
        return False
    return position == end


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
