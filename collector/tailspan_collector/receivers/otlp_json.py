"""OTLP's JSON into protobuf, by the descriptors of the messages.

In: a JSON document of an export request. Out: the same request in protobuf, so that all that follows knows one form.
As the specification says: trace and span ids are hex, other bytes base64; enums are integers; 64-bit integers are
numbers or strings; keys are lowerCamelCase, and those that are not known are ignored; null means absent.
Units: nesting is limited to what protobuf parsers take. Errors: `BadData` names the key, never the value.
Source: opentelemetry-proto `docs/specification.md`, "JSON Protobuf Encoding"; protobuf's ProtoJSON.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from tailspan_collector.receivers.refusals import BadData

MOST_BYTES = 16 * 1024 * 1024
"""Of a document: its objects in memory are some 25 times as large."""
_DEPTH = 100
_ID_BYTES = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_URL_SAFE = str.maketrans("-_", "+/")
_INTEGERS = frozenset(
    {
        FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED32,
        FieldDescriptor.TYPE_SFIXED64,
    }
)  # fmt: skip
_Reader = Callable[[Any, Any, int], None]
"""Sets one field of a message to a JSON value; the number is how deep the message lies."""


def to_protobuf(document: bytes, request: type[Any]) -> bytes:
    """Return an export request in protobuf; `request` is its class.

    Raises:
        BadData: it is no valid JSON, or no such request.
    """
    try:
        value = json.loads(document.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise BadData("the JSON is nested too deeply") from None
    except ValueError as error:  # also no UTF-8, and integers of thousands of digits
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "no UTF-8, or a number out of range"
        raise BadData(f"the body is no valid JSON: {reason}") from None
    message = request()
    _fill(message, value, 0)
    encoded: bytes = message.SerializeToString()
    return encoded


def _refuse_constant(_name: str) -> None:
    raise json.JSONDecodeError("NaN and Infinity must be strings", "", 0)


def _fill(message: Any, value: Any, depth: int) -> None:
    if not isinstance(value, dict):
        raise BadData(f"{message.DESCRIPTOR.name}: an object is needed")
    if depth >= _DEPTH:
        raise BadData(f"more than {_DEPTH} messages lie inside each other")
    readers = _readers(message.DESCRIPTOR)
    for key, item in value.items():
        reader = readers.get(key)
        if reader is None or item is None:
            continue
        try:
            reader(message, item, depth)
        except (ValueError, TypeError, OverflowError):  # protobuf refuses what is out of range or no text
            raise BadData(f"{message.DESCRIPTOR.name}.{key}: the value is not allowed") from None


@functools.cache
def _readers(descriptor: Descriptor) -> dict[str, _Reader]:
    return {field.json_name: _reader(field) for field in descriptor.fields}


def _reader(field: FieldDescriptor) -> _Reader:
    name, is_message = field.name, field.type == FieldDescriptor.TYPE_MESSAGE
    convert = None if is_message else _converter(field)
    if field.is_repeated:
        return functools.partial(_read_list, name, convert)
    read = functools.partial(_read_message, name) if convert is None else functools.partial(_read_scalar, name, convert)
    return functools.partial(_read_choice, field.containing_oneof.name, read) if field.containing_oneof else read


def _read_message(name: str, message: Any, value: Any, depth: int) -> None:
    field = getattr(message, name)
    field.SetInParent()
    _fill(field, value, depth + 1)


def _read_scalar(name: str, convert: Callable[[Any], Any], message: Any, value: Any, _depth: int) -> None:
    setattr(message, name, convert(value))


def _read_choice(oneof: str, read: _Reader, message: Any, value: Any, depth: int) -> None:
    if message.WhichOneof(oneof) is not None:
        raise ValueError("two values where one is allowed")
    read(message, value, depth)


def _read_list(name: str, convert: Callable[[Any], Any] | None, message: Any, value: Any, depth: int) -> None:
    if not isinstance(value, list):
        raise TypeError("a list is needed")
    field = getattr(message, name)
    if convert is None:
        for item in value:
            _fill(field.add(), item, depth + 1)
    else:
        field.extend([convert(item) for item in value])


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.name in _ID_BYTES and field.type == FieldDescriptor.TYPE_BYTES:
        return functools.partial(_id, _ID_BYTES[field.name])
    if field.type in _INTEGERS:
        return _integer
    return {
        FieldDescriptor.TYPE_ENUM: _enum,
        FieldDescriptor.TYPE_DOUBLE: _double,
        FieldDescriptor.TYPE_BOOL: _boolean,
        FieldDescriptor.TYPE_STRING: _text,
        FieldDescriptor.TYPE_BYTES: _base64,
    }[field.type]


def _id(size: int, value: Any) -> bytes:
    found = bytes.fromhex(_text(value))
    if len(value) not in (0, 2 * size) or len(found) * 2 != len(value):
        raise ValueError("an id has another length")
    return found


def _integer(value: Any) -> int:
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise ValueError("no integer")
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("an integer is needed")
    return value


def _enum(value: Any) -> int:
    if isinstance(value, str):
        raise TypeError("names of enum values are not allowed")
    return _integer(value)


def _double(value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value] if value in _NOT_FINITE else _finite(float(value))
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError("a number is needed")
    return _finite(float(value))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("the number is too large for a double")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is needed")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string is needed")
    return value


def _base64(value: Any) -> bytes:
    text = _text(value).translate(_URL_SAFE).rstrip("=")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
