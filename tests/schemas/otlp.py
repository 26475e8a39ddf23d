"""Inserts OTLP requests as the collector does, reads rows back, and builds attribute values of every kind.

The text of a value is what the OpenTelemetry Collector's exporter would store (`pcommon.Value.AsString`): numbers as in
JavaScript, bytes in base64, arrays and key-value lists as JSON.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import Phase
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from tailspan_collector.embedded import Engine
from tailspan_collector.signals import Signal

SETTINGS: Mapping[str, int] = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "input_format_parallel_parsing": 0,
    "input_format_protobuf_oneof_presence": 1,
    "max_insert_block_size": 1_000_000,
    "max_partitions_per_insert_block": 0,
    "query_plan_enable_optimizations": 0,
}
GENERATE = (Phase.explicit, Phase.reuse, Phase.generate)
"""Phases of hypothesis without shrinking: each example is an insert."""
READ = "output_format_json_quote_64bit_integers = 0, output_format_json_quote_denormals = 1"
TIMES = (0, 1, 1_764_000_000_123_456_789, 1_764_000_000_999_999_999, 2**63 - 1, 2**63, 2**64 - 1)
"""Times in ns: few, as each day is a partition; the last two are beyond DateTime64 and wrap."""


def insert(engine: Engine, signal: Signal, *payloads: bytes, token: str = "") -> None:
    """Store OTLP requests of a signal in one insert."""
    file = os.memfd_create("otlp")
    try:
        with open(file, "wb", closefd=False) as stream:
            for payload in payloads:
                stream.write(varint(len(payload)) + payload)
        settings = [f"{name} = {value}" for name, value in SETTINGS.items()]
        settings += [f"format_schema = '{signal.proto_file}:{signal.proto_message}'"]
        settings += [f"insert_deduplication_token = '{token}'"] if token else []
        engine.command(
            f"insert into {signal.table} from infile '/proc/self/fd/{file}' "
            f"settings {', '.join(settings)} format Protobuf"
        )
    finally:
        os.close(file)


def varint(number: int) -> bytes:
    """Encode a length as protobuf does."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def records(engine: Engine, sql: str) -> list[dict[str, Any]]:
    """Run a query; rows as Python values."""
    handle = engine.connect()
    try:
        text = handle.query(f"{sql} settings {READ}", "JSONEachRow").bytes().decode()
    finally:
        handle.close()
    return [json.loads(line) for line in text.split("\n") if line]


def pairs(column: str) -> str:
    """Return an expression for a map column that keeps keys which occur twice."""
    return f"cast({column}, 'Array(Tuple(String, String))')"


def ns(column: str) -> str:
    """Return an expression for a DateTime64(9) column: ns as the sender gave them."""
    return f"reinterpretAsUInt64(toUnixTimestamp64Nano({column}))"


# --- the text of attribute values -----------------------------------------------------------------------------------
def same_text(stored: str, value: AnyValue) -> bool:
    """Say whether `stored` is the text of `value`; JSON may differ in how it escapes."""
    kind = value.WhichOneof("value")
    if kind in ("array_value", "kvlist_value"):
        try:
            found = json.loads(stored, object_pairs_hook=lambda object_pairs: ("object", object_pairs))
        except json.JSONDecodeError:
            return False
        return same_json(found, plain(value))
    return stored == scalar_text(value)


def same_json(found: object, meant: object) -> bool:
    """Say whether parsed JSON means `meant`; a whole double is printed without a point."""
    if isinstance(meant, float):
        return isinstance(found, int | float) and float(found) == meant
    if isinstance(meant, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(meant):
            return False
        return all(same_json(one, other) for one, other in zip(found, meant, strict=True))
    return type(found) is type(meant) and found == meant


def scalar_text(value: AnyValue) -> str:
    """Return the text of a value that is neither an array nor a list."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return double_text(value.double_value)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case _:
            return ""


def double_text(number: float) -> str:
    """Return a double as JavaScript prints it, and as Go's JSON does not."""
    if not math.isfinite(number):
        name = "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
        return f"json: unsupported value: {name}"
    if number == int(number) and abs(number) < 1e21:
        return f"{'-' if math.copysign(1, number) < 0 else ''}{digits_of(abs(number))}"
    mantissa, _, exponent = repr(number).partition("e")
    if exponent and (abs(number) < 1e-6 or abs(number) >= 1e21):
        return f"{mantissa.removesuffix('.0')}e{int(exponent):+d}"
    return format(number, f".{decimals(number)}f")


def digits_of(number: float) -> str:
    """Return the shortest digits of a whole number, filled up with zeros."""
    mantissa, _, exponent = repr(number).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction if fraction != "0" else ""
    return whole + fraction + "0" * (int(exponent or 0) - len(fraction))


def decimals(number: float) -> int:
    """Return how many digits after the point the shortest text has."""
    mantissa, _, exponent = repr(number).partition("e")
    return max(len(mantissa.partition(".")[2]) - int(exponent or 0), 0)


def plain(value: AnyValue) -> object:
    """Return what the JSON of a value means; objects as pairs, as keys may repeat."""
    match value.WhichOneof("value"):
        case "array_value":
            return [plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return ("object", [(item.key, plain(item.value)) for item in value.kvlist_value.values])
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value if math.isfinite(value.double_value) else None
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case _:
            return None


def same_attributes(stored: Sequence[Sequence[str]], sent: Sequence[KeyValue]) -> bool:
    """Say whether stored pairs are those that were sent, in the order of keys."""
    if len(stored) != len(sent) or [key for key, _ in stored] != sorted((item.key for item in sent), key=str.encode):
        return False
    left = list(sent)
    for key, text in stored:
        found = next((item for item in left if item.key == key and same_text(text, item.value)), None)
        if found is None:
            return False
        left.remove(found)
    return True


# --- values of every kind -------------------------------------------------------------------------------------------
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEY = st.one_of(st.sampled_from(["service.name", "k", ""]), TEXT)
SCALAR = st.one_of(
    st.just(AnyValue()),
    TEXT.map(lambda text: AnyValue(string_value=text)),
    st.sampled_from([0, -1, 127, 128, 2**63 - 1, -(2**63)]).map(lambda number: AnyValue(int_value=number)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: AnyValue(int_value=number)),
    st.floats().map(lambda number: AnyValue(double_value=number)),
    st.booleans().map(lambda flag: AnyValue(bool_value=flag)),
    st.binary(max_size=20).map(lambda raw: AnyValue(bytes_value=raw)),
    st.sampled_from([120, 127, 128, 300]).map(lambda size: AnyValue(string_value="*2:!\n" + "x" * size)),
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: AnyValue(array_value=ArrayValue(values=items))),
        st.lists(st.tuples(KEY, inner), max_size=4).map(
            lambda items: AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=k, value=v) for k, v in items]))
        ),
    ),
    max_leaves=12,
)
ATTRIBUTES = st.lists(st.tuples(KEY, VALUE).map(lambda item: KeyValue(key=item[0], value=item[1])), max_size=4)
TIME = st.sampled_from(TIMES)
TRACE_ID = st.sampled_from([b"", b"\0" * 16, b"\xab" * 16, bytes(range(16))])
SPAN_ID = st.sampled_from([b"", b"\0" * 8, b"\xcd" * 8, bytes(range(8))])


def hex_id(raw: bytes) -> str:
    """Return an id as hex digits; empty if it is all zeros."""
    return raw.hex() if any(raw) else ""
