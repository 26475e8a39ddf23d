"""Log records reach `otel_logs` as the Collector's exporter would store them, whatever a sender puts into them."""

from __future__ import annotations

import base64
import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from tailspan_collector.embedded import Engine
from tailspan_collector.signals import LOGS
from tests.schemas.otlp import (
    ATTRIBUTES,
    GENERATE,
    SPAN_ID,
    TEXT,
    TIME,
    TRACE_ID,
    VALUE,
    hex_id,
    insert,
    ns,
    pairs,
    records,
    same_attributes,
    same_text,
)

CASES = itertools.count()
RECORD = st.builds(
    LogRecord,
    time_unix_nano=TIME,
    observed_time_unix_nano=TIME,
    severity_number=st.integers(0, 24),
    severity_text=TEXT,
    body=VALUE,
    attributes=ATTRIBUTES,
    flags=st.integers(0, 2**32 - 1),
    trace_id=TRACE_ID,
    span_id=SPAN_ID,
    event_name=TEXT,
)
SELECT = (
    f"select *, {ns('Timestamp')} as time_ns, {pairs('ResourceAttributes')} as resource_pairs, "
    f"{pairs('ScopeAttributes')} as scope_pairs, {pairs('LogAttributes')} as log_pairs from tailspan.otel_logs"
)


@settings(max_examples=40, deadline=None, phases=GENERATE)
@given(st.lists(RECORD, min_size=1, max_size=5), ATTRIBUTES, ATTRIBUTES, TEXT)
def test_every_field_of_a_record_is_stored(
    engine: Engine, sent: list[LogRecord], resource: list[Any], scope: list[Any], text: str
) -> None:
    """Every column holds the field of the record: nested values, wrapped times, ids of zeros and empty values too."""
    name = f"case {next(CASES)}"
    message = ExportLogsServiceRequest()
    logs = message.resource_logs.add(schema_url=f"resource {text}")
    logs.resource.attributes.extend(resource)
    scopes = logs.scope_logs.add(schema_url=f"scope {text}")
    scopes.scope.name, scopes.scope.version = name, text
    scopes.scope.attributes.extend(scope)
    for number, record in enumerate(sent):
        scopes.log_records.add().CopyFrom(record)
        scopes.log_records[number].severity_text = f"{number} {record.severity_text}"
    insert(engine, LOGS, message.SerializeToString())
    rows = sorted(
        records(engine, f"{SELECT} where ScopeName = '{name}'"), key=lambda row: int(row["SeverityText"].split()[0])
    )
    assert len(rows) == len(sent)
    for row, record in zip(rows, scopes.log_records, strict=True):
        assert row["time_ns"] == (record.time_unix_nano or record.observed_time_unix_nano)
        assert (row["TraceId"], row["SpanId"]) == (hex_id(record.trace_id), hex_id(record.span_id))
        assert row["TraceFlags"] == record.flags % 256
        assert (row["SeverityText"], row["SeverityNumber"]) == (record.severity_text, record.severity_number)
        assert row["EventName"] == record.event_name
        assert same_text(row["Body"], record.body)
        assert same_attributes(row["log_pairs"], record.attributes)
        assert same_attributes(row["resource_pairs"], logs.resource.attributes)
        assert same_attributes(row["scope_pairs"], scopes.scope.attributes)
        assert (row["ResourceSchemaUrl"], row["ScopeSchemaUrl"]) == (logs.schema_url, scopes.schema_url)
        assert row["ScopeVersion"] == text


def test_logs_of_the_sdk_are_stored(engine: Engine) -> None:
    """What the OpenTelemetry SDK sends is found by the trace in which it was written."""
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(resource=Resource({"service.name": "sdk logs", "process.command_args": ["python", "-m"]}))
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        provider.get_logger("worker").emit(
            severity_number=SeverityNumber.WARN,
            severity_text="WARN",
            body="request chatcmpl-1 waited 42 ms",
            attributes={"stages": ["queue", "prefill"]},
        )
        context = span.get_span_context()
    insert(engine, LOGS, encode_logs(exporter.get_finished_logs()).SerializeToString())
    (row,) = records(
        engine,
        "select Body, SeverityText, SeverityNumber, SpanId, TraceFlags, ScopeName, "
        "TimestampTime = toDateTime(Timestamp) as agrees, "
        "ResourceAttributes['process.command_args'] as arguments, LogAttributes['stages'] as stages "
        "from tailspan.otel_logs where ServiceName = 'sdk logs' "
        f"and TraceId = '{trace.format_trace_id(context.trace_id)}'",
    )
    assert row["Body"] == "request chatcmpl-1 waited 42 ms"
    assert (row["SeverityText"], row["SeverityNumber"]) == ("WARN", SeverityNumber.WARN.value)
    assert (row["SpanId"], row["TraceFlags"]) == (trace.format_span_id(context.span_id), context.trace_flags)
    assert row["agrees"] == 1
    assert row["arguments"] == '["python","-m"]'
    assert row["stages"] == '["queue","prefill"]'
    assert row["ScopeName"] == "worker"


def test_a_repeated_insert_is_stored_once(engine: Engine) -> None:
    """A batch that is inserted again with its token changes nothing."""
    message = ExportLogsServiceRequest()
    scopes = message.resource_logs.add().scope_logs.add()
    scopes.scope.name = "repeated"
    scopes.log_records.add(time_unix_nano=1_764_000_000_000_000_000).body.string_value = "once"
    for _ in range(3):
        insert(engine, LOGS, message.SerializeToString(), token="repeated")
    assert engine.rows("select count() from tailspan.otel_logs where ScopeName = 'repeated'") == [["1"]]


def test_searches_read_few_granules(engine: Engine) -> None:
    """A range of time prunes days and granules by either time column, and a trace is found by its id."""
    engine.command(
        "insert into tailspan.otel_logs (Timestamp, ServiceName, TraceId, Body) select "
        "fromUnixTimestamp64Nano(1765000000000000000 + number * 10000000), 'many', "
        "lower(hex(MD5(toString(intDiv(number, 20))))), 'words' from numbers(400000)"
    )
    engine.command("optimize table tailspan.otel_logs final")
    span = "between '2025-12-06 05:50:00' and '2025-12-06 05:51:00'"
    for where in (f"Timestamp {span}", f"TimestampTime {span}", "TraceId = lower(hex(MD5('700')))"):
        plan = "\n".join(
            row[0] for row in engine.rows(f"explain indexes = 1 select Body from tailspan.otel_logs where {where}")
        )
        read = next(line for line in plan.splitlines() if "Granules" in line)
        assert int(read.rsplit(":", 1)[1]) <= 3, plan


@settings(max_examples=6, deadline=None, phases=GENERATE)
@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), min_size=10, max_size=10))
def test_broken_nested_values_do_no_harm(engine: Engine, values: list[tuple[bytes, bool]]) -> None:
    """An array or list whose bytes are no protobuf is stored as some text, and its neighbour is stored; ten at once."""
    names = [f"broken {next(CASES)}" for _ in values]
    insert(engine, LOGS, b"".join(map(_broken, names, *zip(*values, strict=True))))
    for name in names:
        assert engine.rows(
            f"select count(), countIf(EventName = 'neighbour') from tailspan.otel_logs where ScopeName = '{name}'"
        ) == [["2", "1"]]


def _broken(name: str, raw: bytes, kvlist: bool) -> bytes:
    """Return resource logs with a record whose body is an array or list of these bytes, and a neighbour."""
    field = b"\x32" if kvlist else b"\x2a"
    body = field + bytes([len(raw)]) + raw
    record = b"\x2a" + bytes([len(body)]) + body
    neighbour = LogRecord(event_name="neighbour").SerializeToString()
    scope = b"".join(b"\x12" + bytes([len(item)]) + item for item in (record, neighbour))
    named = b"\x0a" + bytes([len(name) + 2]) + b"\x0a" + bytes([len(name)]) + name.encode() + scope
    return b"\x0a" + _sized(b"\x12" + _sized(named))


def _sized(raw: bytes) -> bytes:
    size = len(raw)
    return (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + raw


def test_large_nested_values_stay_raw(engine: Engine) -> None:
    """An array beyond the limits of the conversion is kept as the base64 of its protobuf, not cut and not refused."""
    record = LogRecord(time_unix_nano=1)
    for number in range(5000):
        record.body.array_value.values.add().int_value = number
    message = ExportLogsServiceRequest()
    scopes = message.resource_logs.add().scope_logs.add()
    scopes.scope.name = "large"
    scopes.log_records.add().CopyFrom(record)
    insert(engine, LOGS, message.SerializeToString())
    (row,) = records(engine, "select Body from tailspan.otel_logs where ScopeName = 'large'")
    assert base64.b64decode(row["Body"]) == record.body.array_value.SerializeToString()


def test_long_strings_in_nested_values_are_whole(engine: Engine) -> None:
    """A string whose length takes three bytes of protobuf is in the JSON from its first to its last character."""
    record = LogRecord(time_unix_nano=1)
    record.body.kvlist_value.values.add(key="k").value.string_value = "é" + "x" * 17_000 + "\n"
    message = ExportLogsServiceRequest()
    scopes = message.resource_logs.add().scope_logs.add()
    scopes.scope.name = "long"
    scopes.log_records.add().CopyFrom(record)
    insert(engine, LOGS, message.SerializeToString())
    (row,) = records(engine, "select Body from tailspan.otel_logs where ScopeName = 'long'")
    assert same_text(row["Body"], record.body)
