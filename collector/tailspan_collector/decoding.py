"""Says of a request whether ClickHouse can decode it, without an insert; asked only once an insert has failed.

In: the protobuf schema by which ClickHouse decodes a signal, so that both decoders know the same fields. Text need not
be UTF-8, as ClickHouse takes any. Besides what is no protobuf, ClickHouse refuses much that google.protobuf mends or
skips, and no OTLP sender writes; comparing both on mutated requests showed: two values of a `oneof`, numbers beyond the
range of their type, fields of the schema under another wire type (some of which it takes for something else).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tailspan_collector.framing import read_varint

_LINE = re.compile(
    r"^\s*(?:message (?P<message>\w+) \{|oneof (?P<oneof>\w+) \{|(?P<end>\})"
    r"|(?P<repeated>repeated )?(?P<type>\w+) (?P<name>\w+) = (?P<number>\d+);)",
    re.MULTILINE,
)
_Proto = descriptor_pb2.FieldDescriptorProto
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIGN, _WRAP = 1 << 63, 1 << 64
_RANGES = {
    FieldDescriptor.TYPE_BOOL: (0, 1),
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_SINT32: (0, (1 << 32) - 1),
}


class Verdict(Enum):
    """What is to be expected of an insert of a request."""

    PLAIN = "every byte is understood: it can hardly fail"
    ODD = "it has fields that are unknown or doubled: it may fail"
    BROKEN = "it cannot be decoded"


class Decoder:
    """Decodes the requests of one signal."""

    def __init__(self, schema: Path, message: str) -> None:
        self._request = _classes(schema.read_text(encoding="utf-8"))[message]

    def judge(self, payload: bytes) -> tuple[Verdict, str]:
        """Return what is to be expected of a request, and why if it is broken."""
        request = self._request()
        try:
            request.MergeFromString(payload)
        except DecodeError:
            return Verdict.BROKEN, "no valid protobuf"
        request.DiscardUnknownFields()
        if request.ByteSize() == len(payload):
            return Verdict.PLAIN, ""
        fault = _fault(self._request.DESCRIPTOR, payload, 0, len(payload), {})
        return (Verdict.BROKEN if fault else Verdict.ODD), fault


_Seen = dict[int | str, Any]
"""Of one message: its oneofs that have a value, and what was seen of its single messages, by number."""


def _fault(message: Descriptor, body: bytes, position: int, end: int, seen: _Seen) -> str:
    """Return what ClickHouse refuses in a message that is valid protobuf, empty if nothing is known."""
    known = _known(message)
    while position < end:
        tag, position = read_varint(body, position)
        wire, field = tag & 7, known.get(tag >> 3)
        value, position, after = _step(body, position, wire)
        if after < 0:
            return ""  # a group: no sender writes any, and nothing is known about them
        if field is not None:
            fault = field.fault(message, wire, value, seen)
            if not fault and field.message is not None:
                inner = {} if field.is_repeated else seen.setdefault(tag >> 3, {})
                fault = _fault(field.message, body, position, after, inner)
            if fault:
                return fault
        position = after
    return ""


def _step(body: bytes, position: int, wire: int) -> tuple[int, int, int]:
    """Return the number that a field starts with, where its bytes begin, and where they end; -1 for a group."""
    if wire == _VARINT:
        value, after = read_varint(body, position)
        return value, position, after
    if wire == _LENGTH:
        size, begin = read_varint(body, position)
        return size, begin, begin + size
    return 0, position, position + {_FIXED64: 8, _FIXED32: 4}[wire] if wire in (_FIXED64, _FIXED32) else -1


@dataclass(frozen=True, slots=True)
class _Known:
    """A field of the schema."""

    name: str
    wire: int
    is_repeated: bool
    oneof: str
    message: Descriptor | None
    least: int
    most: int

    def fault(self, message: Descriptor, wire: int, value: int, seen: _Seen) -> str:
        """Return what is wrong with an occurrence of the field itself."""
        if wire != self.wire and not (self.is_repeated and wire == _LENGTH):  # numbers may be packed
            return f"{message.name}.{self.name} has another wire type"
        if wire == _VARINT:
            signed = value - _WRAP if value >= _SIGN and self.least < 0 else value
            if value >= _WRAP or not self.least <= signed <= self.most:
                return f"{message.name}.{self.name} is out of range"
        if self.oneof:
            if self.oneof in seen:
                return f"{message.name}.{self.oneof} has two values"
            seen[self.oneof] = True
        return ""


@functools.cache
def _known(message: Descriptor) -> dict[int, _Known]:
    return {field.number: _describe(field) for field in message.fields}


def _describe(field: FieldDescriptor) -> _Known:
    wire = _LENGTH
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FIXED64, field.TYPE_SFIXED64):
        wire = _FIXED64
    elif field.type in (field.TYPE_FLOAT, field.TYPE_FIXED32, field.TYPE_SFIXED32):
        wire = _FIXED32
    elif field.type not in (field.TYPE_MESSAGE, field.TYPE_BYTES):
        wire = _VARINT
    oneof = field.containing_oneof.name if field.containing_oneof else ""
    least, most = _RANGES.get(field.type, (-_SIGN if field.type == field.TYPE_INT64 else 0, _WRAP - 1))
    return _Known(field.name, wire, field.is_repeated, oneof, field.message_type, least, most)


@functools.cache
def _classes(schema: str) -> dict[str, Any]:
    """Return the classes of a schema's messages by name; text is made bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="schema.proto", syntax="proto3")
    is_choice = False
    for line in _LINE.finditer(schema):
        if line["message"]:
            file.message_type.add(name=line["message"])
        elif line["oneof"] or line["end"]:
            is_choice = bool(line["oneof"])
            if is_choice:
                file.message_type[-1].oneof_decl.add(name=line["oneof"])
        else:
            _add_field(file.message_type[-1], line, is_choice)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(message.name))
        for message in file.message_type
    }


def _add_field(message: Any, line: re.Match[str], is_choice: bool) -> None:
    field = message.field.add(name=line["name"], number=int(line["number"]))
    field.label = _Proto.LABEL_REPEATED if line["repeated"] else _Proto.LABEL_OPTIONAL
    kind = getattr(_Proto, f"TYPE_{line['type'].upper()}", _Proto.TYPE_MESSAGE)
    field.type = _Proto.TYPE_BYTES if kind == _Proto.TYPE_STRING else kind
    if kind == _Proto.TYPE_MESSAGE:
        field.type_name = f".{line['type']}"
    if is_choice:
        field.oneof_index = len(message.oneof_decl) - 1
