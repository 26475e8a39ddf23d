"""OTLP's JSON becomes exactly the protobuf that it stands for, and nothing makes the receiver crash."""

from __future__ import annotations

import json
import math
import string
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan_collector.receivers.otlp_json import to_protobuf
from tailspan_collector.receivers.refusals import BadData
from tailspan_collector.signals import LOGS, METRICS, SIGNALS, TRACES, Signal
from tests.collector.receivers.clients import JSON, post
from tests.collector.receivers.otlp_examples import EXAMPLES, SPAN_ID, TRACE_ID
from tests.collector.receivers.receiving import receiving


def span_of(**fields: Any) -> Span:
    """Convert one span."""
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]}
    request = TRACES.request.FromString(to_protobuf(json.dumps(document).encode(), TRACES.request))
    span: Span = request.resource_spans[0].scope_spans[0].spans[0]
    return span


def value_of(value: Any) -> AnyValue:
    """Convert one attribute's value."""
    found: AnyValue = span_of(attributes=[{"key": "a", "value": value}]).attributes[0].value
    return found


def test_ids_are_hex() -> None:
    """Trace and span ids are hex of either case, not base64 as in protobuf's own JSON."""
    span = span_of(traceId=TRACE_ID, spanId=SPAN_ID.lower(), parentSpanId="", links=[{"traceId": TRACE_ID}])
    assert span.trace_id == bytes.fromhex(TRACE_ID)
    assert span.span_id == bytes.fromhex(SPAN_ID)
    assert span.parent_span_id == b""
    assert span.links[0].trace_id == span.trace_id


@pytest.mark.parametrize("name", ["traceId", "spanId", "parentSpanId"])
@pytest.mark.parametrize("value", ["ab", "ab" * 15, "ab" * 17, "zz" * 16, "ab cd" * 6 + "ab", "A", 5, "ab" * 100_000])
def test_ids_of_another_length_are_refused(name: str, value: Any) -> None:
    """An id that is not 16 or 8 bytes of hex is no id."""
    with pytest.raises(BadData, match=name):
        span_of(**{name: value})


def test_numbers_of_64_bits_are_strings_or_numbers() -> None:
    """Both ways of writing 64-bit integers are understood to the last digit, also written as 1e3."""
    assert span_of(startTimeUnixNano="18446744073709551615").start_time_unix_nano == 2**64 - 1
    assert span_of(startTimeUnixNano=1544712660000000001).start_time_unix_nano == 1544712660000000001
    assert span_of(startTimeUnixNano=1e3).start_time_unix_nano == 1000
    assert value_of({"intValue": "-9223372036854775808"}).int_value == -(2**63)


@pytest.mark.parametrize("value", ["18446744073709551616", -1, "-1", "x", "", 1.5, True, [], {}, 10**400, 1e400])
def test_numbers_out_of_range_are_refused(value: Any) -> None:
    """What does not fit in the field is refused and never wrapped round."""
    with pytest.raises(BadData):
        span_of(startTimeUnixNano=value)


def test_enums_are_integers() -> None:
    """Enum values are integers, also unknown ones; their names are not allowed."""
    assert span_of(kind=2).kind == 2
    assert span_of(kind=99).kind == 99
    with pytest.raises(BadData):
        span_of(kind="SPAN_KIND_SERVER")


def test_doubles() -> None:
    """Doubles are numbers, or strings for what JSON cannot say."""
    assert value_of({"doubleValue": 5}).double_value == 5
    assert value_of({"doubleValue": "Infinity"}).double_value == math.inf
    assert math.isnan(value_of({"doubleValue": "NaN"}).double_value)
    for text in (b"NaN", b"Infinity", b"1e999", b"1" + b"0" * 400):
        document = b'{"resourceSpans":[{"resource":{"attributes":[{"value":{"doubleValue":%s}}]}}]}' % text
        with pytest.raises(BadData):
            to_protobuf(document, TRACES.request)


def test_keys_are_lower_camel_case_and_unknown_ones_ignored() -> None:
    """Only lowerCamelCase keys count; any other key, of any value, is ignored; null is absent."""
    span = span_of(name="a", trace_id="not an id", startTimeUnixNano=None, unknown={"deep": [1, {"x": None}]})
    assert span == Span(name="a")


def test_values_keep_their_type() -> None:
    """An empty string, false and 0 are values, an empty object is none; bytes are base64 of either alphabet."""
    assert value_of({"stringValue": ""}).WhichOneof("value") == "string_value"
    assert value_of({"boolValue": False}).WhichOneof("value") == "bool_value"
    assert value_of({"intValue": 0}).WhichOneof("value") == "int_value"
    assert value_of({}).WhichOneof("value") is None
    assert value_of({"bytesValue": "-_8="}).bytes_value == value_of({"bytesValue": "+/8"}).bytes_value == b"\xfb\xff"
    assert value_of({"arrayValue": {"values": [{"intValue": 1}, {}]}}).array_value.values[0].int_value == 1
    assert value_of({"kvlistValue": {}}).WhichOneof("value") == "kvlist_value"


@pytest.mark.parametrize(
    "value",
    [
        {"stringValue": "a", "intValue": 1},
        {"stringValue": 5},
        {"stringValue": "\ud800"},
        {"boolValue": "true"},
        {"boolValue": 1},
        {"bytesValue": "!"},
        {"bytesValue": "aaaaa"},
        {"arrayValue": []},
        {"arrayValue": {"values": {}}},
        {"arrayValue": {"values": [None]}},
        "text",
        [],
        5,
    ],
)
def test_values_of_another_type_are_refused(value: Any) -> None:
    """Nothing is guessed: two values, wrong types, broken text or bytes are refused."""
    with pytest.raises(BadData):
        value_of(value)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b"5",
        b'"text"',
        b"{",
        b'{"resourceSpans":{}}',
        b'{"resourceSpans":[5]}',
        b'{"resourceSpans":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"1" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"resourceSpans":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"resourceSpans":[{"resource":{"attributes":[{"value":'
        + b'{"arrayValue":{"values":[' * 150
        + b"]}}" * 150
        + b"}]}}]}",
    ],
    ids=range(16),
)
def test_hostile_documents_are_400(document: bytes) -> None:
    """Whatever is sent as JSON, the answer is a Status in JSON, and the next request is served."""
    with receiving(max_request_bytes=1 << 20) as running:
        response = post(running.http.port, document, content_type=JSON)
        assert (response.status, response.json()["code"]) == (400, 3)
        assert post(running.http.port, b"{}", content_type=JSON).status == 200
        assert running.traces.requests == []


def test_large_documents_are_413() -> None:
    """JSON has a limit of its own, as its objects in memory are many times as large."""
    with receiving(max_request_bytes=64 << 20) as running:
        response = post(running.http.port, b" " * (17 << 20), content_type=JSON)
        assert response.status == 413
        assert "protobuf" in response.json()["message"]


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_the_specifications_examples(signal: Signal) -> None:
    """The examples of the specification become what protobuf's own JSON reader makes of them, ids apart."""
    document = json.dumps(EXAMPLES[signal.name])
    base64_ids = document.replace(TRACE_ID, "W47/95gDgQPSabYzgT/GDA==").replace(SPAN_ID, "7uGbfsPBsXQ=")
    expected = signal.request()
    json_format.Parse(base64_ids.replace("EEE19B7EC3C1B173", "7uGbfsPBsXM="), expected)
    assert signal.request.FromString(to_protobuf(document.encode(), signal.request)) == expected


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    sorted(
        {
            field.json_name
            for signal in (TRACES, METRICS, LOGS)
            for message in signal.request.DESCRIPTOR.file.message_types_by_name.values()
            for field in message.fields
        }
        | {"resource", "attributes", "key", "value", "scopeSpans", "spans", "traceId", "kind", "stringValue", "metrics"}
        | {"scopeMetrics", "gauge", "dataPoints", "asDouble", "scopeLogs", "logRecords", "body", "arrayValue", "values"}
    )
)
OTLP_LIKE = st.recursive(
    JSON_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(["resourceSpans", "resourceMetrics", "resourceLogs"]), OTLP_LIKE))
def test_any_document_is_converted_or_refused(document: Any) -> None:
    """No document raises anything but the refusal, and what is accepted is valid protobuf."""
    for signal in SIGNALS:
        try:
            encoded = to_protobuf(json.dumps(document).encode(), signal.request)
        except BadData:
            continue
        signal.request.FromString(encoded)


@given(st.binary())
def test_any_bytes_are_converted_or_refused(document: bytes) -> None:
    """No bytes raise anything but the refusal."""
    try:
        to_protobuf(document, TRACES.request)
    except BadData:
        return
    assert isinstance(json.loads(document), dict)
