"""Tagged attribute values decode to what was sent."""

from __future__ import annotations

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from tailspan_schemas.values import Plain, decode

ARRAY = ArrayValue(values=[AnyValue(int_value=1), AnyValue(), AnyValue(array_value=ArrayValue())])
KVLIST = KeyValueList(values=[KeyValue(key="k", value=AnyValue(string_value="v")), KeyValue(key="k", value=AnyValue())])


@pytest.mark.parametrize(
    ("tagged", "value"),
    [
        (b"string:a:b", "a:b"),
        (b"string:", ""),
        (b"int:-5", -5),
        (b"double:0.1", 0.1),
        (b"double:-inf", float("-inf")),
        (b"bool:true", True),
        (b"bool:false", False),
        (b"bytes:\xff:\x00", b"\xff:\x00"),
        (b"empty:", None),
        (b"array:" + ARRAY.SerializeToString(), [1, None, []]),
        (b"array:", []),
        (b"kvlist:" + KVLIST.SerializeToString(), [("k", "v"), ("k", None)]),
    ],
)
def test_decode(tagged: bytes, value: Plain) -> None:
    """Every kind decodes, nested and empty ones too."""
    assert decode(tagged) == value
    assert type(decode(tagged)) is type(value)


def test_unknown_kinds_are_errors() -> None:
    """What no writer writes is an error, not an empty value."""
    with pytest.raises(ValueError, match="unknown kind"):
        decode(b"original:x")
