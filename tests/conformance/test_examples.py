"""The official examples of OTLP, sent in every form and read back field by field.

Each test puts a service name of its own in the place of `my.service`, since the same bytes twice are one request.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from tailspan_schemas.rows import select_spans, to_otlp
from tests.conformance.running import OtlpCollector, unique
from tests.conformance.sending import JSON, Http, Transport
from tests.conformance.signals import LOGS, METRICS, TRACES, Signal

EXAMPLES = Path(__file__).parent / "examples"
SCOPE_NAME = "my\u002elibrary"  # as the examples write it
SCOPE = {"ScopeName": SCOPE_NAME, "ScopeVersion": "1.0.0"}
SCOPE_ATTRIBUTES = {"my.scope.attribute": "some scope attribute"}
WHEN = dt.datetime(2018, 12, 13, 14, 51, 0, 300_000)
TRACE_ID, SPAN_ID = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"


def example(name: str, service: str) -> bytes:
    """Return an official example with another service name."""
    text = (EXAMPLES / f"{name}.json").read_text()
    assert text.count('"my.service"') == 1
    return text.replace("my.service", service).encode()


def as_message(body: bytes, signal: Signal) -> Any:
    """Return the protobuf message that an example stands for, made without the collector's own conversion."""
    import base64

    from google.protobuf import json_format

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode() if key.endswith(("raceId", "panId")) else convert(item)
            for key, item in value.items()
        }

    return json_format.ParseDict(convert(json.loads(body)), signal.request())


def deliver(transport: Transport, signal: Signal, name: str) -> tuple[str, Any]:
    """Send an example as it is (JSON) or made into protobuf; return its service and the message it stands for."""
    service = unique(name)
    body = example(name, service)
    message = as_message(body, signal)
    is_json = isinstance(transport, Http) and transport.content_type == JSON
    assert transport.send(signal, body if is_json else message.SerializeToString()).ok
    return service, message


def row(collector: OtlpCollector, table: str, service: str, condition: str = "1") -> dict[str, Any]:
    """Return the one row of a service, times without zone and text values as they are."""
    collector.wait_rows(1, f"(select 1 from tailspan.{table} where ServiceName = '{service}' and {condition})")
    found = collector.client().query(
        f"select * from tailspan.{table} where ServiceName = {{service:String}} and {condition}",
        parameters={"service": service},
    )
    (values,) = found.named_results()
    return {key: plain(value) for key, value in values.items()}


def plain(value: Any) -> Any:
    """Return a time without its zone, a tuple as a list."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return [*value] if isinstance(value, tuple) else value


def differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields that are not as expected."""
    return {key: (found.get(key), value) for key, value in expected.items() if found.get(key) != value}


def test_trace(transport: Transport, collector: OtlpCollector) -> None:
    """trace.json: every column, and the span rebuilt from its row equals the one that was sent."""
    service, message = deliver(transport, TRACES, "trace")
    assert collector.stored(TRACES, service, 1) == 1
    columns = (
        "lower(hex(trace_id)), lower(hex(span_id)), lower(hex(parent_span_id)), name, kind, "
        "toUnixTimestamp64Nano(start), duration_ns, attributes_string, resource_attributes, scope_name, scope_version, "
        "scope_attributes, status_code"
    )
    (found,) = collector.query(f"select {columns} from tailspan.spans where service = {{s:String}}", s=service)
    assert found == (
        TRACE_ID, SPAN_ID, "eee19b7ec3c1b173", "I'm a server span", 2, 1_544_712_660_000_000_000, 1_000_000_000,
        {"my.span.attr": "some value"}, {"service.name": service}, SCOPE_NAME, "1.0.0", SCOPE_ATTRIBUTES, 0,
    )  # fmt: skip
    result = collector.client().query(
        select_spans("service = {s:String}"),
        parameters={"s": service},
        query_formats={"String": "bytes", "FixedString": "bytes"},
    )
    (values,) = result.named_results()
    rebuilt = to_otlp(values)
    sent = message.resource_spans[0]
    rebuilt.scope_spans[0].spans[0].ClearField("status")
    assert rebuilt == sent


def test_trace_in_the_compatible_view(transport: Transport, collector: OtlpCollector) -> None:
    """trace.json is also there as `otel_traces`, with the columns of the OpenTelemetry Collector's exporter."""
    service, _ = deliver(transport, TRACES, "trace")
    found = row(collector, "otel_traces", service)
    expected = {
        "TraceId": TRACE_ID,
        "SpanId": SPAN_ID,
        "ParentSpanId": "eee19b7ec3c1b173",
        "SpanName": "I'm a server span",
        "SpanKind": "Server",
        "Timestamp": dt.datetime(2018, 12, 13, 14, 51),
        "Duration": 1_000_000_000,
        "SpanAttributes": {"my.span.attr": "some value"},
        "ResourceAttributes": {"service.name": service},
        "StatusCode": "Unset",
        **SCOPE,
    }
    assert not differences(found, expected)


METRIC = {"MetricUnit": "1", "TimeUnix": WHEN, "Flags": 0, "ScopeAttributes": SCOPE_ATTRIBUTES, **SCOPE}
METRIC_ROWS = {
    "sum": {
        "MetricName": "my.counter", "MetricDescription": "I am a Counter", "Value": 5.0, "StartTimeUnix": WHEN,
        "IsMonotonic": True, "AggregationTemporality": 1, "Attributes": {"my.counter.attr": "some value"},
    },
    "gauge": {
        "MetricName": "my.gauge", "MetricDescription": "I am a Gauge", "Value": 10.0,
        "Attributes": {"my.gauge.attr": "some value"},
    },
    "histogram": {
        "MetricName": "my.histogram", "MetricDescription": "I am a Histogram", "StartTimeUnix": WHEN, "Count": 2,
        "Sum": 2.0, "BucketCounts": [1, 1], "ExplicitBounds": [1.0], "Min": 0.0, "Max": 2.0,
        "AggregationTemporality": 1, "Attributes": {"my.histogram.attr": "some value"},
    },
    "exponential_histogram": {
        "MetricName": "my.exponential.histogram", "MetricDescription": "I am an Exponential Histogram",
        "StartTimeUnix": WHEN, "Count": 3, "Sum": 10.0, "Scale": 0, "ZeroCount": 1, "PositiveOffset": 1,
        "PositiveBucketCounts": [0, 2], "NegativeOffset": 0, "NegativeBucketCounts": [], "Min": 0.0, "Max": 5.0,
        "AggregationTemporality": 1, "Attributes": {"my.exponential.histogram.attr": "some value"},
    },
}  # fmt: skip


def test_metrics(transport: Transport, collector: OtlpCollector) -> None:
    """metrics.json: counter, gauge, histogram and exponential histogram, each in its table with all its fields."""
    service, _ = deliver(transport, METRICS, "metrics")
    for table, expected in METRIC_ROWS.items():
        found = row(collector, f"otel_metrics_{table}", service)
        wanted = METRIC | expected | {"ResourceAttributes": {"service.name": service}}
        assert not differences(found, wanted), table


LOG_ATTRIBUTES = {
    "string.attribute": "some string",
    "boolean.attribute": "true",
    "int.attribute": "10",
    "double.attribute": "637.704",
    "array.attribute": '["many","values"]',
    "map.attribute": '{"some.map.key":"some value"}',
}


def test_logs(transport: Transport, collector: OtlpCollector) -> None:
    """logs.json: every field, attributes of all kinds in the text form of the OpenTelemetry Collector's exporter."""
    service, _ = deliver(transport, LOGS, "logs")
    expected = {
        "Timestamp": WHEN,
        "TraceId": TRACE_ID,
        "SpanId": SPAN_ID,
        "SeverityText": "Information",
        "SeverityNumber": 10,
        "Body": "Example log record",
        "LogAttributes": LOG_ATTRIBUTES,
        "ScopeAttributes": SCOPE_ATTRIBUTES,
        "ResourceAttributes": {"service.name": service},
        **SCOPE,
    }
    assert not differences(row(collector, "otel_logs", service), expected)


def test_events(transport: Transport, collector: OtlpCollector) -> None:
    """events.json: the name of the event, and its body, a map, as JSON."""
    service, _ = deliver(transport, LOGS, "events")
    found = row(collector, "otel_logs", service)
    expected = {
        "Timestamp": WHEN,
        "EventName": "browser.page_view",
        "SeverityText": "test severity text",
        "SeverityNumber": 9,
        "LogAttributes": {"event.attribute": "some event attribute"},
        "ResourceAttributes": {"service.name": service},
        **SCOPE,
    }
    assert not differences(found, expected)
    assert json.loads(found["Body"]) == {
        "type": 0,
        "url": "https://www.guidgenerator.com/online-guid-generator.aspx",
        "referrer": "https://wwww.google.com",
        "title": "Free Online GUID Generator",
    }


@pytest.mark.parametrize("name", ["trace", "metrics", "logs", "events"])
def test_the_examples_are_the_official_ones(name: str) -> None:
    """The files are those of opentelemetry-proto, by their Git blob ids there, but for one dot written as an escape."""
    import hashlib

    official = {
        "trace": "41130ff1aa0d7379812a2c7d7f89bbf80d72fe21",
        "metrics": "33e72c4b53aa9fdad6549de5e6e10251aa0a5236",
        "logs": "3fd7716290c18a0bb44a9073c96c749b7f5fd7d1",
        "events": "bee9d5b5e69b3ac5afee3e92823f9f9067abce74",
    }
    content = (EXAMPLES / f"{name}.json").read_bytes().replace(b"\\u002e", b".")
    assert hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == official[name]
