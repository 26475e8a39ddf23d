"""Strange values: what is stored of them is what was sent, and what others send is stored beside them."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest

from tailspan_schemas.rows import select_spans, to_otlp
from tests.conformance.bombs import with_attribute
from tests.conformance.running import MIB, OtlpCollector, bounded_memory, kept, unique
from tests.conformance.sending import Grpc, Transport
from tests.conformance.signals import LOGS, METRICS, TRACES, Signal
from tests.conformance.test_hostile import PATHS
from tests.conformance.wire import field, varint
from tests.support.otlp_messages import comparable, single_spans, string

pytestmark = pytest.mark.usefixtures("neighbours")


def rebuilt(collector: OtlpCollector, service: str) -> list[Any]:
    """Return the spans of a service as OTLP messages, made from their rows."""
    result = collector.client().query(
        select_spans("service = {s:String}"),
        parameters={"s": service},
        query_formats={"String": "bytes", "FixedString": "bytes"},
    )
    return [to_otlp(values) for values in result.named_results()]


def single(message: Any) -> set[bytes]:
    """Return the comparable form of every span of a request."""
    return {comparable(part) for part in single_spans(message)}


def send_all_back(collector: OtlpCollector, message: Any, service: str) -> None:
    """Send spans and compare them, rebuilt from their rows, with what was sent."""
    sender = Grpc(collector.otlp_port)
    assert sender.send(TRACES, message.SerializeToString()).ok
    sender.close()
    expected = single(message)
    assert collector.stored(TRACES, service, len(expected)) == len(expected)
    assert {comparable(part) for part in rebuilt(collector, service)} == expected


def test_spans_with_10_000_attributes(collector: OtlpCollector) -> None:
    """Each of 20 spans with 10,000 attributes is stored with all of them."""
    service = unique("wide")
    message = TRACES.message(service, 20)
    for number, span in enumerate(message.resource_spans[0].scope_spans[0].spans):
        span.attributes.extend(string(f"key {index}", f"value {number} {index}") for index in range(9_000))
        for index in range(1_000):
            span.attributes.add(key=f"number {index}").value.int_value = index
    with bounded_memory(collector, 400 * MIB):
        sender = Grpc(collector.otlp_port)
        assert sender.send(TRACES, message.SerializeToString()).ok
        sender.close()
        assert collector.stored(TRACES, service, 20) == 20
    assert {comparable(part) for part in rebuilt(collector, service)} == single(message)


def test_times_at_the_ends_of_their_range(collector: OtlpCollector) -> None:
    """Times 0, 2^63 - 1, 2^63 and 2^64 - 1 of spans, events and begin after end are stored as they came."""
    service = unique("times")
    message = TRACES.message(service, 0)
    ends = (0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)
    for start in ends:
        for end in ends:
            span = message.resource_spans[0].scope_spans[0].spans.add(name=f"{start} {end}", trace_id=b"t" * 16)
            span.start_time_unix_nano, span.end_time_unix_nano = start, end
            span.events.add(name="event", time_unix_nano=end)
    send_all_back(collector, message, service)


def test_ids_of_every_wrong_length(collector: OtlpCollector) -> None:
    """Trace, span and parent ids of 0 to 40 bytes are stored and can be read back as they came."""
    service = unique("ids")
    message = TRACES.message(service, 0)
    spans = message.resource_spans[0].scope_spans[0].spans
    for size in range(41):
        for kind in ("trace_id", "span_id", "parent_span_id"):
            ids = {"trace_id": b"t" * 16, "span_id": b"s" * 8, "parent_span_id": b"p" * 8} | {kind: b"x" * size}
            spans.add(name=f"{kind} {size}", start_time_unix_nano=time.time_ns(), **ids)  # type: ignore[arg-type]
    send_all_back(collector, message, service)


def test_log_ids_and_times_of_every_kind(collector: OtlpCollector) -> None:
    """Log records with ids of 0 to 40 bytes and times at the ends of their range are stored."""
    service = unique("logs")
    message = LOGS.message(service, 0)
    records = message.resource_logs[0].scope_logs[0].log_records
    for size in range(41):
        records.add(trace_id=b"t" * size, span_id=b"s" * size, time_unix_nano=time.time_ns())
    for when in (0, 2**63 - 1, 2**63, 2**64 - 1):
        records.add(time_unix_nano=when, observed_time_unix_nano=when, severity_number=2**31 - 1)
    transport = Grpc(collector.otlp_port)
    assert transport.send(LOGS, message.SerializeToString()).ok
    assert collector.stored(LOGS, service, 45) == 45
    transport.close()


def test_points_with_times_at_the_ends_of_their_range(collector: OtlpCollector) -> None:
    """Data points with such times, and values that are not finite, are stored."""
    service = unique("points")
    message = METRICS.message(service, 0)
    points = message.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    for when in (0, 2**63 - 1, 2**63, 2**64 - 1):
        for value in (float("nan"), float("inf"), -float("inf"), 1e308):
            points.add(time_unix_nano=when, start_time_unix_nano=when, as_double=value, flags=2**32 - 1)
    transport = Grpc(collector.otlp_port)
    assert transport.send(METRICS, message.SerializeToString()).ok
    assert collector.stored(METRICS, service, 16) == 16
    transport.close()


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\x00b\xff"])
def test_text_that_is_no_utf_8(collector: OtlpCollector, signal: Signal, raw: bytes) -> None:
    """A request with broken text is refused, stored, or kept as a reject, and is there at most once."""
    service = unique("text")
    body = signal.message(service, 1, "NAME").SerializeToString().replace(b"NAME", raw.ljust(4, b"\xff")[:4])
    transport = Grpc(collector.otlp_port)
    reply = transport.send(signal, body)
    assert reply.code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
    if reply.ok:
        assert kept(collector, signal, service) == 1
    transport.close()


SQL = (
    "'; drop table tailspan.spans; --",
    "\\'; drop database tailspan; --",
    "`; truncate table tailspan.spans; `",
    "{service:String}",
    "%s %(service)s",
    "$1; select sleep(3)",
    "') format Values (1",
    "\x00';--",
    "\n\t\\N",
    "*/ select 1 /*",
    "[('a','b')]",
)


def test_sql_in_every_text_of_spans(collector: OtlpCollector) -> None:
    """Statements in service, names, keys, values, states, events, links, scope and resource are only text."""
    for text in SQL:
        service = f"{text}{unique('sql')}"
        message = TRACES.message(service, 1, text)
        outer = message.resource_spans[0]
        scope, span = outer.scope_spans[0], outer.scope_spans[0].spans[0]
        outer.schema_url = scope.schema_url = scope.scope.name = scope.scope.version = text
        span.trace_state = span.status.message = text
        event, link = span.events.add(name=text), span.links.add(trace_state=text)
        for holder in (outer.resource, scope.scope, span, event, link):
            holder.attributes.append(string(text, text))
        span.attributes.append(string("tailspan.role", text))
        span.attributes.append(string("gen_ai.request.model", text))
        send_all_back(collector, message, service)


@pytest.mark.parametrize("name", ["grpc", "http/json"])
def test_sql_in_every_text_of_metrics_and_logs(collector: OtlpCollector, name: str) -> None:
    """The same for names, units, descriptions, bodies, severities and attributes."""
    transport: Transport = collector.transport(name)
    for text in SQL:
        service = f"{text}{unique('sql')}"
        metrics = METRICS.message(service, 1, text)
        metric = metrics.resource_metrics[0].scope_metrics[0].metrics[0]
        metric.unit = metric.description = text
        metric.gauge.data_points[0].attributes.append(string(text, text))
        logs = LOGS.message(service, 1, text)
        record = logs.resource_logs[0].scope_logs[0].log_records[0]
        record.severity_text = record.event_name = text
        record.body.string_value = text
        record.attributes.append(string(text, text))
        for signal, message in ((METRICS, metrics), (LOGS, logs)):
            assert transport.send(signal, transport.encode(message)).ok
            assert collector.stored(signal, service, 1) == 1, text
        parameters = {"s": service, "t": text}
        for table, columns in (
            ("otel_metrics_gauge", "MetricName, MetricUnit, MetricDescription, Attributes[{t:String}]"),
            ("otel_logs", "Body, SeverityText, EventName, LogAttributes[{t:String}]"),
        ):
            sql = f"select {columns} from tailspan.{table} where ServiceName = {{s:String}}"
            assert collector.query(sql, **parameters) == [(text,) * 4]
    transport.close()


def test_a_list_whose_inner_length_lies(collector: OtlpCollector, signal: Signal) -> None:
    """Garbage inside of a list is stored as it came; neither an insert nor a query falls over it."""
    service = unique("lie")
    value = field(5, field(1, b"\x0a" + varint(2**63)))
    body = with_attribute(signal.message(service).SerializeToString(), *PATHS[signal.name], value)
    transport = Grpc(collector.otlp_port)
    assert transport.send(signal, body).ok
    transport.close()
    assert collector.stored(signal, service, 1) == 1
    table = {"traces": "otel_traces", "metrics": "otel_metrics_gauge", "logs": "otel_logs"}[signal.name]
    assert collector.query(f"select max(length(toString(tuple(*)))) from tailspan.{table}")[0][0] > 0
    rejects = "select count() from tailspan.rejects where position(payload, {s:String}) > 0"
    assert collector.query(rejects, s=service) == [(0,)]
