"""What ClickHouse cannot decode is told without an insert, and told right: ClickHouse itself is asked as well."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailspan_collector.decoding import Decoder, Verdict
from tailspan_collector.embedded import EmbeddedSink, Engine
from tailspan_collector.errors import DataError
from tailspan_collector.framing import write_varint
from tailspan_collector.signals import SIGNALS, TRACES, Signal
from tests.support.new_database import make_database
from tests.support.otlp_messages import request_with_stages


def field(number: int, payload: bytes) -> bytes:
    """Return a field of wire type 2."""
    return write_varint(number << 3 | 2) + write_varint(len(payload)) + payload


def span(inner: bytes) -> bytes:
    """Return a request with one span of these bytes."""
    return field(1, field(2, field(2, inner)))


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSink]:
    """An embedded ClickHouse with the schema."""
    with Engine(make_database(tmp_path_factory.mktemp("decoding") / "clickhouse")) as engine:
        yield EmbeddedSink(engine)


def is_taken(sink: EmbeddedSink, payload: bytes) -> bool:
    """Whether ClickHouse can decode a traces request."""
    try:
        sink.insert(TRACES, write_varint(len(payload)) + payload, payload.hex()[:100])
    except DataError:
        return False
    return True


def attribute(value: bytes) -> bytes:
    """Return a request with one attribute of that AnyValue."""
    return span(field(9, field(1, b"k") + field(2, value)))


CASES = {
    "a whole request": (request_with_stages(2), Verdict.PLAIN),
    "text that is no UTF-8": (span(field(5, b"\xff\xfe")), Verdict.PLAIN),
    "garbage inside of a list": (attribute(field(5, b"\xff\xff\xff")), Verdict.PLAIN),
    "a field of a later version": (span(field(5, b"x")) + field(77, b"later"), Verdict.ODD),
    "a name twice": (span(field(5, b"a") + field(5, b"b")), Verdict.ODD),
    "a length beyond the end": (field(1, field(2, b"\x12\x7fx")), Verdict.BROKEN),
    "two values of an attribute": (attribute(b"\x18\x01\x10\x01"), Verdict.BROKEN),
    "two values in two parts": (
        span(field(9, field(1, b"k") + field(2, b"\x18\x01") + field(2, b"\x10\x01"))),
        Verdict.BROKEN,
    ),
    "a kind of 33 bits": (span(b"\x30" + write_varint(1 << 32)), Verdict.BROKEN),
    "a count of 65 bits": (attribute(b"\x18" + write_varint(1 << 64)), Verdict.BROKEN),
    "a boolean of 17": (attribute(b"\x10\x91\x01"), Verdict.BROKEN),
    "a time as text": (span(field(7, b"noon")), Verdict.BROKEN),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(sink: EmbeddedSink, name: str) -> None:
    """Each kind of request gets its verdict, and ClickHouse takes those, and only those, that are not broken."""
    payload, expected = CASES[name]
    decoder = Decoder(TRACES.proto_file, TRACES.proto_message)
    verdict, reason = decoder.judge(payload)
    assert verdict is expected
    assert bool(reason) == (verdict is Verdict.BROKEN)
    assert is_taken(sink, payload) == (verdict is not Verdict.BROKEN)


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_any_bytes_get_a_verdict(signal: Signal) -> None:
    """No bytes make it fail, and a request that is cut off anywhere is broken."""
    decoder = Decoder(signal.proto_file, signal.proto_message)
    rng = random.Random(signal.name)
    for _ in range(3000):
        assert decoder.judge(rng.randbytes(rng.randrange(60)))[0] in Verdict
    whole = request_with_stages(1)
    verdicts = [decoder.judge(whole[:size])[0] for size in range(1, len(whole))]
    assert set(verdicts) == {Verdict.BROKEN}


def test_the_schema_is_read_as_it_is_written(tmp_path: Path) -> None:
    """Fields, choices, lists and messages of the schema file are known; what it does not name is odd."""
    schema = tmp_path / "schema.proto"
    schema.write_text(
        'syntax = "proto3";\n\nmessage Inner {\n  oneof value {\n    string a = 1;\n    int64 b = 2;\n  }\n}\n\n'
        "message Outer {\n  repeated Inner inner = 1;\n  uint32 c = 2;\n}\n"
    )
    decoder = Decoder(schema, "Outer")
    assert decoder.judge(field(1, field(1, b"x")) + b"\x10\x05")[0] is Verdict.PLAIN
    assert decoder.judge(field(1, field(1, b"x") + b"\x10\x05")) == (Verdict.BROKEN, "Inner.value has two values")
    assert decoder.judge(b"\x18\x05")[0] is Verdict.ODD
