"""The JSON mapping of OTLP: proto3 JSON with hex ids, numbers for enums, and unknown fields ignored."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.running import OtlpCollector, unique
from tests.conformance.sending import JSON, Http
from tests.conformance.signals import LOGS, TRACES

TRACE_ID, SPAN_ID, PARENT_ID = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174", "eee19b7ec3c1b173"


@pytest.fixture
def sender(collector: OtlpCollector) -> Iterator[Http]:
    """OTLP/HTTP in JSON."""
    opened = Http(collector.otlp_http_port, JSON)
    yield opened
    opened.close()


def span_request(service: str, **fields: Any) -> bytes:
    """Return a request with one span; `fields` go over its own."""
    now = time.time_ns()
    span = {
        "traceId": TRACE_ID,
        "spanId": SPAN_ID,
        "name": "span",
        "kind": 2,
        "startTimeUnixNano": str(now),
        "endTimeUnixNano": str(now + 1000),
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    scopes = [{"spans": [span | fields]}]
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}).encode()


def stored(collector: OtlpCollector, service: str, columns: str) -> tuple[Any, ...]:
    """Return columns of the one span of a service."""
    assert collector.stored(TRACES, service, 1) == 1
    return collector.query(f"select {columns} from tailspan.spans where service = {{s:String}}", s=service)[0]


@pytest.mark.parametrize("convert", [str.lower, str.upper, str.title], ids=["lower", "upper", "mixed"])
def test_ids_are_hex_in_any_case(sender: Http, collector: OtlpCollector, convert: Any) -> None:
    """Trace id, span id, parent and the ids of links are hex, not base64, in upper, lower or mixed case."""
    service = unique("hex")
    ids = {"traceId": convert(TRACE_ID), "spanId": convert(SPAN_ID)}
    body = span_request(service, **ids, parentSpanId=convert(PARENT_ID), links=[ids])
    assert sender.send(TRACES, body).code == 200
    columns = "lower(hex(trace_id)), lower(hex(span_id)), lower(hex(parent_span_id))"
    links = "lower(hex(links.trace_id[1])), lower(hex(links.span_id[1]))"
    assert stored(collector, service, f"{columns}, {links}") == (TRACE_ID, SPAN_ID, PARENT_ID, TRACE_ID, SPAN_ID)


def test_ids_of_logs_are_hex(sender: Http, collector: OtlpCollector) -> None:
    """The same holds for log records."""
    service = unique("hex")
    record = {"traceId": TRACE_ID.upper(), "spanId": SPAN_ID, "timeUnixNano": str(time.time_ns())}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    message = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [record]}]}]}
    assert sender.send(LOGS, json.dumps(message).encode()).code == 200
    assert collector.stored(LOGS, service, 1) == 1
    sql = "select lower(TraceId), lower(SpanId) from tailspan.otel_logs where ServiceName = {s:String}"
    assert collector.query(sql, s=service) == [(TRACE_ID, SPAN_ID)]


@pytest.mark.parametrize("wrong", ["zz", "5b8", "W47/95gDgQPSabYzgT/GDA=="])
def test_ids_that_are_no_hex_are_bad_data(sender: Http, wrong: str) -> None:
    """An id in base64, or with letters that are no hex digits, is refused instead of being stored as something else."""
    assert sender.send(TRACES, span_request(unique("nohex"), traceId=wrong)).code == 400


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5])
def test_enums_are_numbers(sender: Http, collector: OtlpCollector, kind: int) -> None:
    """The kind of a span and the code of its status are numbers."""
    service = unique("enum")
    assert sender.send(TRACES, span_request(service, kind=kind, status={"code": kind % 3, "message": "m"})).code == 200
    assert stored(collector, service, "kind, status_code, status_message") == (kind, kind % 3, "m")


def test_names_of_enums_are_bad_data(sender: Http) -> None:
    """`SPAN_KIND_SERVER` is not allowed in OTLP/JSON; it is refused, never taken for another kind."""
    assert sender.send(TRACES, span_request(unique("enum"), kind="SPAN_KIND_SERVER")).code == 400


def test_unknown_fields_are_ignored(sender: Http, collector: OtlpCollector) -> None:
    """Fields with unknown names and values of any form, at every level, are as if they were not there."""
    service = unique("unknown")
    body = json.loads(span_request(service))
    values = [1, -1.5e300, "text", None, True, [], [[{"a": []}]], {"deep": {"er": [1, {}]}}]
    resource = body["resourceSpans"][0]
    scope = resource["scopeSpans"][0]
    places = (body, resource, resource["resource"], resource["resource"]["attributes"][0], scope, scope["spans"][0])
    for place in places:
        place |= {f"later{number}": value for number, value in enumerate(values)}
    assert sender.send(TRACES, json.dumps(body).encode()).code == 200
    assert stored(collector, service, "name, kind, lower(hex(trace_id))") == ("span", 2, TRACE_ID)


def test_original_field_names_are_no_keys(sender: Http, collector: OtlpCollector) -> None:
    """Keys are lowerCamelCase; the snake_case name of a field is an unknown key and ignored like any other."""
    service = unique("snake")
    body = span_request(service, dropped_attributes_count=7, trace_state="a=b", droppedEventsCount=3)
    assert sender.send(TRACES, body).code == 200
    assert stored(collector, service, "dropped_attributes, trace_state, dropped_events") == (0, "", 3)


@pytest.mark.parametrize("write", [str, int], ids=["string", "number"])
def test_64_bit_numbers_are_strings_or_numbers(sender: Http, collector: OtlpCollector, write: Any) -> None:
    """Times and 64-bit integers come as decimal strings or as numbers, without loss up to the last digit."""
    service, start, big = unique("int64"), 1_544_712_660_123_456_789, 9_223_372_036_854_775_807
    attributes = [
        {"key": "big", "value": {"intValue": write(big)}},
        {"key": "low", "value": {"intValue": write(-big - 1)}},
    ]
    times = {"startTimeUnixNano": write(start), "endTimeUnixNano": write(start + 1)}
    assert sender.send(TRACES, span_request(service, attributes=attributes, **times)).code == 200
    columns = "toUnixTimestamp64Nano(start), duration_ns, attributes_int['big'], attributes_int['low']"
    assert stored(collector, service, columns) == (start, 1, big, -big - 1)


def test_values_of_every_kind(sender: Http, collector: OtlpCollector) -> None:
    """Strings, booleans, doubles, bytes in base64, arrays and maps arrive as what they are."""
    service = unique("values")
    values = {
        "text": {"stringValue": 'ü"\\\n\u0000'},
        "yes": {"boolValue": True},
        "half": {"doubleValue": 0.5},
        "whole": {"doubleValue": 3},
        "nan": {"doubleValue": "NaN"},
        "raw": {"bytesValue": "AAEC/w=="},
        "list": {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "b"}]}},
        "map": {"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": False}}]}},
    }
    attributes = [{"key": key, "value": value} for key, value in values.items()]
    assert sender.send(TRACES, span_request(service, attributes=attributes)).code == 200
    columns = (
        "attributes_string['text'], attributes_bool['yes'], attributes_double['half'], attributes_double['whole'], "
        "isNaN(attributes_double['nan']), hex(attributes_other['raw']), hex(attributes_other['list']), "
        "hex(attributes_other['map'])"
    )
    raw, array = b"bytes:\x00\x01\x02\xff", b"array:\n\x02\x18\x01\n\x03\n\x01b"
    pairs = b"kvlist:\n\x07\n\x01k\x12\x02\x10\x00"
    expected = ('ü"\\\n\x00', True, 0.5, 3.0, 1, *(part.hex().upper() for part in (raw, array, pairs)))
    assert stored(collector, service, columns) == expected


def test_null_is_the_default(sender: Http, collector: OtlpCollector) -> None:
    """A field that is null is as if it were absent, as proto3 JSON has it."""
    service = unique("null")
    body = span_request(service, parentSpanId=None, kind=None, attributes=None, status=None, droppedLinksCount=None)
    assert sender.send(TRACES, body).code == 200
    assert stored(collector, service, "kind, status_code, dropped_links") == (0, 0, 0)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"x"', b"{", b'{"resourceSpans": {}}', b'{"resourceSpans": [1]}',
     b'{"resourceSpans":[{}]} x',
     b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "-1"}]}]}]}',
     b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "18446744073709551616"}]}]}]}',
     b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": 1.5}]}]}]}',
     b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 1}]}]}]}',
     b'\xef\xbb\xbf{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "\xff"}]}]}]}'],
)  # fmt: skip
def test_what_is_no_otlp_json_is_bad_data(sender: Http, body: bytes) -> None:
    """Values of the wrong form, numbers out of range and broken JSON are 400 with a reason in English."""
    reply = sender.send(TRACES, body)
    assert reply.code == 400
    assert reply.text.isascii()
