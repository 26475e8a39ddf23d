"""Spans are readable as `otel_traces`: every field, by the queries that Grafana and HyperDX send, reading little."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailspan_collector.embedded import Engine
from tailspan_collector.signals import TRACES
from tailspan_schemas.promoted import PROMOTED
from tests.schemas.otlp import (
    ATTRIBUTES,
    GENERATE,
    TEXT,
    TIME,
    VALUE,
    insert,
    ns,
    pairs,
    records,
    same_attributes,
)

BEGIN_NS = 1_764_100_000_000_000_000
CASES = itertools.count()
KINDS = ["Unspecified", "Internal", "Server", "Client", "Producer", "Consumer"]
STATUSES = ["Unset", "Ok", "Error"]
PROMOTED_KEY = st.sampled_from([item.key for item in PROMOTED])
WITH_PROMOTED = st.tuples(ATTRIBUTES, st.lists(st.builds(KeyValue, key=PROMOTED_KEY, value=VALUE), max_size=3)).map(
    lambda found: found[0] + found[1]
)
EVENT = st.builds(Span.Event, time_unix_nano=TIME, name=TEXT, attributes=ATTRIBUTES)
LINK = st.builds(
    Span.Link, trace_id=st.just(b"\x01" * 16), span_id=st.just(b"\x02" * 8), trace_state=TEXT, attributes=ATTRIBUTES
)
SPAN = st.builds(
    Span,
    trace_id=st.just(b"\xab" * 16),
    parent_span_id=st.sampled_from([b"", b"\x07" * 8]),
    trace_state=TEXT,
    name=TEXT,
    kind=st.integers(0, 5),
    start_time_unix_nano=TIME,
    attributes=WITH_PROMOTED,
    events=st.lists(EVENT, max_size=2),
    links=st.lists(LINK, max_size=2),
    status=st.builds(Status, code=st.integers(0, 2), message=TEXT),
)


@settings(max_examples=30, deadline=None, phases=GENERATE)
@given(st.lists(SPAN, min_size=1, max_size=4), ATTRIBUTES, TEXT, st.sampled_from([-5, 0, 1, 10**9, 2**62]))
def test_every_field_of_a_span_is_readable(
    engine: Engine, sent: list[Span], resource: list[KeyValue], text: str, duration_ns: int
) -> None:
    """Every column holds the field of the span; all attributes are there as text, with a column of their own or not."""
    name = f"case {next(CASES)}"
    message = ExportTraceServiceRequest()
    resources = message.resource_spans.add()
    resources.resource.attributes.extend(resource)
    scopes = resources.scope_spans.add()
    scopes.scope.name, scopes.scope.version = name, text
    for number, span in enumerate(sent):
        scopes.spans.add().CopyFrom(span)
        scopes.spans[number].span_id = (number + 1).to_bytes(8, "big")
        scopes.spans[number].end_time_unix_nano = (span.start_time_unix_nano + duration_ns) % 2**64
    insert(engine, TRACES, message.SerializeToString())
    rows = records(
        engine,
        f"select *, {ns('Timestamp')} as time_ns, {pairs('mapSort(SpanAttributes)')} as span_pairs, "
        f"{pairs('mapSort(ResourceAttributes)')} as resource_pairs, "
        "cast(arrayMap(m -> mapSort(m), `Events.Attributes`), 'Array(Array(Tuple(String, String)))') as event_pairs, "
        "cast(arrayMap(m -> mapSort(m), `Links.Attributes`), 'Array(Array(Tuple(String, String)))') as link_pairs, "
        "arrayMap(t -> reinterpretAsUInt64(toUnixTimestamp64Nano(t)), `Events.Timestamp`) as event_times "
        f"from tailspan.otel_traces where ScopeName = '{name}' order by SpanId",
    )
    assert len(rows) == len(sent)
    for row, span in zip(rows, scopes.spans, strict=True):
        check_span(row, span, max(duration_ns, 0))
        assert same_attributes(row["resource_pairs"], resource)
        assert row["ScopeVersion"] == text


def check_span(row: dict[str, Any], span: Span, duration_ns: int) -> None:
    """Compare a row with the span it was made of."""
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    assert (row["TraceId"], row["SpanId"], row["ParentSpanId"]) == ids
    assert (row["time_ns"], row["Duration"]) == (span.start_time_unix_nano, duration_ns)
    assert (row["SpanName"], row["TraceState"]) == (span.name, span.trace_state)
    assert row["SpanKind"] == KINDS[span.kind]
    assert (row["StatusCode"], row["StatusMessage"]) == (STATUSES[span.status.code], span.status.message)
    assert same_attributes(row["span_pairs"], span.attributes)
    assert row["event_times"] == [event.time_unix_nano for event in span.events]
    assert row["Events.Name"] == [event.name for event in span.events]
    for stored, event in zip(row["event_pairs"], span.events, strict=True):
        assert same_attributes(stored, event.attributes)
    assert row["Links.TraceId"] == [link.trace_id.hex() for link in span.links]
    assert row["Links.SpanId"] == [link.span_id.hex() for link in span.links]
    assert row["Links.TraceState"] == [link.trace_state for link in span.links]
    for stored, link in zip(row["link_pairs"], span.links, strict=True):
        assert same_attributes(stored, link.attributes)


def test_promoted_keys_are_those_of_the_list(engine: Engine) -> None:
    """The view puts every attribute that has a column back under its key."""
    text = engine.rows("select create_table_query from system.tables where name = 'otel_traces'")[0][0]
    columns = dict(re.findall(r"\(\\'([\w.]+)\\', [^)]*?\b(\w+)\)+(?=, \(|\]\))", text))
    assert columns == {item.key: item.column for item in PROMOTED}


# --- what tools send ------------------------------------------------------------------------------------------------
FIELDS = (
    '"TraceId" as traceID, "SpanId" as spanID, "ParentSpanId" as parentSpanID, "ServiceName" as serviceName, '
    '"SpanName" as operationName, multiply(toUnixTimestamp64Nano("Timestamp"), 0.000001) as startTime, '
    'multiply("Duration", 0.000001) as duration, '
    "arrayMap(key -> map('key', key, 'value',\"SpanAttributes\"[key]), mapKeys(\"SpanAttributes\")) as tags, "
    "arrayMap(key -> map('key', key, 'value',\"ResourceAttributes\"[key]), mapKeys(\"ResourceAttributes\")) "
    "as serviceTags, if(\"StatusCode\" IN ('Error', 'STATUS_CODE_ERROR'), 2, 0) as statusCode, "
    "arrayMap((name, timestamp, attributes) -> tuple(name, toString(toUnixTimestamp64Milli(timestamp)), "
    "arrayMap(key -> "
    "map('key', key, 'value', attributes[key]), mapKeys(attributes)))::Tuple(name String, timestamp String, fields "
    'Array(Map(String, String))), "Events".Name, "Events".Timestamp, "Events".Attributes) AS logs, '
    "arrayMap((traceID, spanID, attributes) -> tuple(traceID, spanID, arrayMap(key -> map('key', key, 'value', "
    "attributes[key]), mapKeys(attributes)))::Tuple(traceID String, spanID String, tags Array(Map(String, String))), "
    '"Links".TraceId, "Links".SpanId, "Links".Attributes) AS references, "SpanKind" as kind, '
    '"StatusMessage" as statusMessage, "TraceState" as traceState'
)
"""What the Grafana data source selects for its trace panel (sqlGenerator.ts, generateTraceIdQuery)."""
TABLE = '"tailspan"."otel_traces"'
GRAFANA_TRACE = (
    'WITH \'{trace_id}\' as __gf_trace_id, (SELECT min(Start) FROM "tailspan"."otel_traces_trace_id_ts" WHERE '
    "TraceId = "
    '__gf_trace_id) as __gf_trace_start, (SELECT max(End) + 1 FROM "tailspan"."otel_traces_trace_id_ts" WHERE '
    "TraceId = "
    f"__gf_trace_id) as __gf_trace_end SELECT {FIELDS} FROM {TABLE} WHERE traceID = __gf_trace_id AND "
    '"Timestamp" >= __gf_trace_start AND "Timestamp" <= __gf_trace_end'
)
GRAFANA_TRACE_WITHOUT_INDEX = f"SELECT {FIELDS} FROM {TABLE} WHERE traceID = '{{trace_id}}'"
GRAFANA_SEARCH = (
    'SELECT "TraceId" as traceID, "ServiceName" as serviceName, "SpanName" as operationName, "Timestamp" as startTime, '
    f'multiply("Duration", 0.000001) as duration FROM {TABLE} WHERE ( Timestamp >= {{since}} AND Timestamp <= '
    f"{{until}} ) "
    "AND ( ParentSpanId = '' ) AND ( Duration > 0 ) ORDER BY Timestamp DESC, Duration DESC LIMIT 1000"
)
DASHBOARD = {
    "rate": "SELECT toStartOfInterval(Timestamp, INTERVAL 60 second) AS time, count() / 60 AS rps FROM "
    "tailspan.otel_traces WHERE Timestamp >= {since} AND Timestamp <= {until} AND ServiceName = 'shop' AND SpanKind = "
    "'Server' GROUP BY time ORDER BY time",
    "errors": "SELECT countIf(StatusCode IN ('Error', 'STATUS_CODE_ERROR')) / count() AS error_rate, "
    "quantile(0.99)(Duration) AS p99 FROM tailspan.otel_traces WHERE Timestamp >= {since} AND Timestamp <= {until} AND "
    "positionCaseInsensitive(SpanName, 'CHAT') > 0",
    "traces": "SELECT TraceId, any(ServiceName) AS Service, any(SpanName) AS RootOperation, min(Timestamp) AS Time, "
    "max(Duration) AS Duration, count() AS Spans, anyIf(StatusCode, StatusCode IN ('Error', 'STATUS_CODE_ERROR')) AS "
    "Status FROM tailspan.otel_traces WHERE Timestamp >= {since} AND Timestamp <= {until} GROUP BY TraceId "
    "HAVING 1=1 ORDER BY Time DESC LIMIT 200",
    "service map": "SELECT concat(parent.ServiceName, '-', child.ServiceName) AS id, count() AS calls FROM "
    "tailspan.otel_traces AS child INNER JOIN tailspan.otel_traces AS parent ON child.ParentSpanId = parent.SpanId AND "
    "child.TraceId = parent.TraceId WHERE child.Timestamp >= {since} AND child.Timestamp <= {until} AND "
    "parent.Timestamp >= {since} AND parent.Timestamp <= {until} AND parent.ServiceName != child.ServiceName "
    "GROUP BY id",
    "deployments": "SELECT ServiceName, topK(1)(ResourceAttributes['service.version'])[1] AS version FROM "
    "tailspan.otel_traces WHERE Timestamp >= {since} AND Timestamp <= {until} AND "
    "ResourceAttributes['service.version'] "
    "!= '' GROUP BY ServiceName",
    "hyperdx list": "SELECT Timestamp,ServiceName,StatusCode,round(Duration/1e6),SpanName FROM "
    "tailspan.otel_traces WHERE "
    "(Timestamp >= fromUnixTimestamp64Milli({since_ms}) AND Timestamp <= fromUnixTimestamp64Milli({until_ms})) AND "
    "((lower(SpanName) LIKE lower('%chat%')) AND (`SpanAttributes`['gen_ai.request.model'] = 'm')) ORDER BY Timestamp "
    "DESC LIMIT 200 OFFSET 0",
    "hyperdx trace": "SELECT Timestamp, SpanName as Body, ServiceName, Duration/1e9 as Duration, SpanId, ParentSpanId, "
    "StatusCode, SpanAttributes, SpanEvents.Name FROM (SELECT *, `Events.Name` as `SpanEvents.Name` FROM "
    "tailspan.otel_traces) WHERE (Timestamp >= fromUnixTimestamp64Milli({since_ms}) AND Timestamp <= "
    "fromUnixTimestamp64Milli({until_ms})) AND (TraceId = '{trace_id}') ORDER BY Timestamp ASC",
    "hyperdx histogram": "SELECT count(), toStartOfInterval(toDateTime(Timestamp), INTERVAL 1 minute) AS "
    "`__hdx_time_bucket`, StatusCode FROM tailspan.otel_traces WHERE (Timestamp >= "
    "fromUnixTimestamp64Milli({since_ms}) "
    "AND Timestamp <= fromUnixTimestamp64Milli({until_ms})) GROUP BY StatusCode, `__hdx_time_bucket`",
    "hyperdx keys": "SELECT arrayJoin(mapKeys(SpanAttributes)) AS key FROM tailspan.otel_traces WHERE Timestamp >= "
    "fromUnixTimestamp64Milli({since_ms}) GROUP BY key LIMIT 1000",
}
VALUES = {
    "trace_id": "5a" * 16,
    "since": f"fromUnixTimestamp64Nano({BEGIN_NS})",
    "until": f"fromUnixTimestamp64Nano({BEGIN_NS + 60 * 10**9})",
    "since_ms": str(BEGIN_NS // 10**6),
    "until_ms": str(BEGIN_NS // 10**6 + 60_000),
}


@pytest.fixture(scope="module")
def shop(engine: Engine) -> Engine:
    """A trace of two services: a shop that calls a model."""
    message = ExportTraceServiceRequest()
    for number, service in enumerate(["shop", "model"]):
        resources = message.resource_spans.add()
        for key, value in (("service.name", service), ("service.version", "1.2")):
            resources.resource.attributes.add(key=key).value.string_value = value
        span = resources.scope_spans.add().spans.add(
            trace_id=b"\x5a" * 16,
            span_id=bytes([number + 1]) * 8,
            parent_span_id=b"\x01" * 8 if number else b"",
            name="POST /buy" if not number else "chat",
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=BEGIN_NS + (number + 1) * 10**9,
            end_time_unix_nano=BEGIN_NS + (5 - number) * 10**9,
            status=Status(code=Status.STATUS_CODE_ERROR if number else Status.STATUS_CODE_OK, message="late"),
        )
        if number:
            span.attributes.append(KeyValue(key="gen_ai.request.model", value=AnyValue(string_value="m")))
            span.events.add(name="first token", time_unix_nano=BEGIN_NS + 3 * 10**9).attributes.add(
                key="n"
            ).value.int_value = 1
            span.links.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8)
    insert(engine, TRACES, message.SerializeToString(), token="shop")
    return engine


def test_grafana_shows_a_trace(shop: Engine) -> None:
    """The trace panel's query, with and without the table of trace times, returns both spans with tags and events."""
    for query in (GRAFANA_TRACE, GRAFANA_TRACE_WITHOUT_INDEX):
        parent, child = sorted(records(shop, query.format(**VALUES)), key=lambda row: row["spanID"])
        assert (parent["serviceName"], parent["parentSpanID"], parent["duration"]) == ("shop", "", 4000)
        assert parent["startTime"] == BEGIN_NS / 10**6 + 1000
        assert (child["operationName"], child["parentSpanID"], child["kind"]) == ("chat", "01" * 8, "Server")
        assert (child["statusCode"], child["statusMessage"]) == (2, "late")
        assert {"key": "gen_ai.request.model", "value": "m"} in child["tags"]
        assert {"key": "service.version", "value": "1.2"} in child["serviceTags"]
        (event,) = child["logs"]
        assert (event["name"], event["fields"]) == ("first token", [{"key": "n", "value": "1"}])
        assert child["references"][0]["traceID"] == "01" * 16


def test_grafana_finds_traces(shop: Engine) -> None:
    """The search of the data source lists root spans of a range of time."""
    (row,) = records(shop, GRAFANA_SEARCH.format(**VALUES))
    assert (row["traceID"], row["operationName"], row["duration"]) == ("5a" * 16, "POST /buy", 4000)


@pytest.mark.parametrize("name", DASHBOARD)
def test_queries_of_dashboards_run(shop: Engine, name: str) -> None:
    """What Grafana's OpenTelemetry dashboards and HyperDX send runs as it is and finds the spans."""
    rows = records(shop, DASHBOARD[name].format(**VALUES))
    assert rows
    if name == "service map":
        assert [row["id"] for row in rows] == ["shop-model"]
    if name == "hyperdx list":
        assert [row["SpanName"] for row in rows] == ["chat"]


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(engine: Engine) -> Engine:
    """Seven days of traces of 20 spans each."""
    engine.command(
        "insert into tailspan.spans (start, trace_id, span_id, service, name) select "
        "fromUnixTimestamp64Nano(1766000000000000000 + number * 1500000000), MD5(toString(intDiv(number, 20))), "
        "reinterpretAsFixedString(number), 'large', 'span' from numbers(400000) settings max_insert_threads = 1"
    )
    engine.command("optimize table tailspan.spans final")
    engine.command("optimize table tailspan.traces final")
    return engine


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("select * from tailspan.otel_traces where TraceId = lower(hex(MD5('7000')))", 2),
        ("select count() from tailspan.otel_traces where TraceId in (lower(hex(MD5('1'))), lower(hex(MD5('9'))))", 3),
        (
            "select * from tailspan.otel_traces where Timestamp >= '2025-12-20 10:00:00' and Timestamp < "
            "'2025-12-20 10:10:00' and ServiceName = 'large'",
            2,
        ),
        (
            "select min(Start), max(End) + 1 from tailspan.otel_traces_trace_id_ts where TraceId = "
            "lower(hex(MD5('7000')))",
            16,
        ),
    ],
)
def test_a_search_reads_few_granules(large: Engine, query: str, most: int) -> None:
    """A trace id in hex finds its granules by an index, and a range of time prunes days and granules."""
    plan = "\n".join(row[0] for row in large.rows(f"explain indexes = 1 {query}"))
    counted = [(int(a), int(b)) for a, b in re.findall(r"Granules: (\d+)/(\d+)", plan)]
    assert counted[0][1] > 3 * most or "trace_id_ts" in query, plan
    assert counted[-1][0] <= most, plan
