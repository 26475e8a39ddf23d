"""What must become of a mutated request, by google.protobuf instead of ClickHouse.

    VALID      whole, no field that the schema does not have: must be stored, never a reject
    INVALID    cannot be decoded at all: refused, or a reject
    UNCLEAR    decoders may differ: unknown fields, a known field under another wire type, garbage in a list or map

Text that is no UTF-8 does not make a request invalid, as ClickHouse takes it: the judge reads text as bytes.
"""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.message import DecodeError, Message

from tests.conformance.signals import Signal

OPAQUE = {"array_value", "kvlist_value", "entity_refs"}


class Verdict(Enum):
    """See above."""

    VALID = "valid"
    INVALID = "invalid"
    UNCLEAR = "unclear"


@functools.cache
def lenient(signal_request: Any, is_opaque: bool) -> Any:
    """Return the class of a request in which text is bytes, and if `is_opaque` nested values are too."""
    pool, seen = descriptor_pool.DescriptorPool(), set()

    def add(file: Any) -> None:
        for dependency in file.dependencies:
            if dependency.name not in seen:
                add(dependency)
        seen.add(file.name)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        for message in proto.message_type:
            _text_to_bytes(message, OPAQUE if is_opaque else set())
        pool.Add(proto)

    add(signal_request.DESCRIPTOR.file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(signal_request.DESCRIPTOR.full_name))


def _text_to_bytes(message: Any, opaque: set[str]) -> None:
    for field in message.field:
        if field.type == field.TYPE_STRING or field.name in opaque:
            field.type = field.TYPE_BYTES
            field.ClearField("type_name")
    for inner in message.nested_type:
        _text_to_bytes(inner, opaque)


def judge(signal: Signal, body: bytes) -> tuple[Verdict, int]:
    """Return the verdict on a request and how many resources' items it has at most (spans, points, records)."""
    message, whole = lenient(signal.request, True)(), lenient(signal.request, False)()
    try:
        message.MergeFromString(body)
    except DecodeError:
        return Verdict.INVALID, 0
    try:
        whole.MergeFromString(body)
    except DecodeError:
        return Verdict.UNCLEAR, _items(signal, message)
    # What a decoder merges, drops or cuts to its range comes out as other bytes.
    exact = message.SerializeToString() == body and not _has_unknown(message)
    return (Verdict.VALID if exact else Verdict.UNCLEAR), _items(signal, message)


def _has_unknown(message: Message) -> bool:
    if len(unknown_fields.UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = value if field.is_repeated else (value,)
            if any(_has_unknown(part) for part in parts):
                return True
    return False


def _items(signal: Signal, message: Any) -> int:
    total = 0
    for resource in getattr(message, signal.resources):
        for scope in getattr(resource, resource.DESCRIPTOR.fields[1].name):
            total += len(getattr(scope, scope.DESCRIPTOR.fields[1].name))
    return total
