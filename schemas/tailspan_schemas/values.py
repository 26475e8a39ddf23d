"""Attribute values as the schema stores them: a kind, a colon, and the value.

`attributes_other`, event, link, scope and resource attributes hold such tagged values. Kinds and what follows them:

    string:  the text            int:     decimal digits       double:  shortest decimal text, also nan, inf, -inf
    bool:    true or false       bytes:   the raw bytes        array:   an opentelemetry ArrayValue, raw protobuf
    empty:   nothing             kvlist:  an opentelemetry KeyValueList, raw protobuf
    original: what a column cannot hold exactly (see `rows`); never the value of an attribute

In: bytes as read from ClickHouse. Out: `AnyValue` messages or plain Python values.
Errors: ValueError for an unknown kind.
"""

from __future__ import annotations

from typing import TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

Plain: TypeAlias = "str | bool | int | float | bytes | list[Plain] | list[tuple[str, Plain]] | None"
"""An attribute value in Python; a key-value list is a list of pairs, because its keys may repeat."""


def to_any_value(tagged: bytes) -> AnyValue:
    """Decode one tagged value."""
    kind, _, payload = tagged.partition(b":")
    value = AnyValue()
    match kind:
        case b"string":
            value.string_value = payload.decode("utf-8", "replace")
        case b"int":
            value.int_value = int(payload)
        case b"double":
            value.double_value = float(payload)
        case b"bool":
            value.bool_value = payload == b"true"
        case b"bytes":
            value.bytes_value = payload
        case b"array":
            value.array_value.SetInParent()
            value.array_value.MergeFromString(payload)
        case b"kvlist":
            value.kvlist_value.SetInParent()
            value.kvlist_value.MergeFromString(payload)
        case b"empty":
            pass
        case _:
            raise ValueError(f"unknown kind of attribute value: {kind!r}")
    return value


def to_plain(value: AnyValue) -> Plain:
    """Return the Python value of an `AnyValue` of any depth; an empty value is None."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bytes_value":
            return value.bytes_value
        case "array_value":
            return [to_plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return [(item.key, to_plain(item.value)) for item in value.kvlist_value.values]
        case _:
            return None


def decode(tagged: bytes) -> Plain:
    """Decode one tagged value to a Python value."""
    return to_plain(to_any_value(tagged))
