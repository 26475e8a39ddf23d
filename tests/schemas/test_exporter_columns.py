"""Logs, metrics and traces are readable with the columns of the OpenTelemetry Collector's ClickHouse exporter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from tailspan_collector.embedded import Engine
from tailspan_collector.signals import LOGS, METRICS
from tailspan_schemas.migrations import SQL_FOLDER

TEXTS = "Map(LowCardinality(String), String)"
METRIC = {
    "ResourceAttributes": TEXTS,
    "ResourceSchemaUrl": "String",
    "ScopeName": "String",
    "ScopeVersion": "String",
    "ScopeAttributes": TEXTS,
    "ScopeDroppedAttrCount": "UInt32",
    "ScopeSchemaUrl": "String",
    "ServiceName": "LowCardinality(String)",
    "MetricName": "String",
    "MetricDescription": "String",
    "MetricUnit": "String",
    "Attributes": TEXTS,
    "StartTimeUnix": "DateTime64(9)",
    "TimeUnix": "DateTime64(9)",
}
EXEMPLARS = {
    "Exemplars.FilteredAttributes": f"Array({TEXTS})",
    "Exemplars.TimeUnix": "Array(DateTime64(9))",
    "Exemplars.Value": "Array(Float64)",
    "Exemplars.SpanId": "Array(String)",
    "Exemplars.TraceId": "Array(String)",
}
COLUMNS = {
    "otel_logs": {
        "Timestamp": "DateTime64(9)",
        "TimestampTime": "DateTime",
        "TraceId": "String",
        "SpanId": "String",
        "TraceFlags": "UInt8",
        "SeverityText": "LowCardinality(String)",
        "SeverityNumber": "UInt8",
        "ServiceName": "LowCardinality(String)",
        "Body": "String",
        "ResourceSchemaUrl": "LowCardinality(String)",
        "ResourceAttributes": TEXTS,
        "ScopeSchemaUrl": "LowCardinality(String)",
        "ScopeName": "String",
        "ScopeVersion": "LowCardinality(String)",
        "ScopeAttributes": TEXTS,
        "LogAttributes": TEXTS,
        "EventName": "String",
    },
    "otel_metrics_gauge": {**METRIC, "Value": "Float64", "Flags": "UInt32", **EXEMPLARS},
    "otel_metrics_sum": {
        **METRIC,
        "Value": "Float64",
        "Flags": "UInt32",
        **EXEMPLARS,
        "AggregationTemporality": "Int32",
        "IsMonotonic": "Bool",
    },
    "otel_metrics_histogram": {
        **METRIC,
        "Count": "UInt64",
        "Sum": "Float64",
        "BucketCounts": "Array(UInt64)",
        "ExplicitBounds": "Array(Float64)",
        **EXEMPLARS,
        "Flags": "UInt32",
        "Min": "Float64",
        "Max": "Float64",
        "AggregationTemporality": "Int32",
    },
    "otel_metrics_exponential_histogram": {
        **METRIC,
        "Count": "UInt64",
        "Sum": "Float64",
        "Scale": "Int32",
        "ZeroCount": "UInt64",
        "PositiveOffset": "Int32",
        "PositiveBucketCounts": "Array(UInt64)",
        "NegativeOffset": "Int32",
        "NegativeBucketCounts": "Array(UInt64)",
        **EXEMPLARS,
        "Flags": "UInt32",
        "Min": "Float64",
        "Max": "Float64",
        "AggregationTemporality": "Int32",
    },
    "otel_metrics_summary": {
        **METRIC,
        "Count": "UInt64",
        "Sum": "Float64",
        "ValueAtQuantiles.Quantile": "Array(Float64)",
        "ValueAtQuantiles.Value": "Array(Float64)",
        "Flags": "UInt32",
    },
    "otel_traces": {
        "Timestamp": "DateTime64(9)",
        "TraceId": "String",
        "SpanId": "String",
        "ParentSpanId": "String",
        "TraceState": "String",
        "SpanName": "LowCardinality(String)",
        "SpanKind": "LowCardinality(String)",
        "ServiceName": "LowCardinality(String)",
        "ResourceAttributes": TEXTS,
        "ScopeName": "String",
        "ScopeVersion": "String",
        "SpanAttributes": TEXTS,
        "Duration": "UInt64",
        "StatusCode": "LowCardinality(String)",
        "StatusMessage": "String",
        "Events.Timestamp": "Array(DateTime64(9))",
        "Events.Name": "Array(LowCardinality(String))",
        "Events.Attributes": f"Array({TEXTS})",
        "Links.TraceId": "Array(String)",
        "Links.SpanId": "Array(String)",
        "Links.TraceState": "Array(String)",
        "Links.Attributes": f"Array({TEXTS})",
    },
    "otel_traces_trace_id_ts": {"TraceId": "String", "Start": "DateTime", "End": "DateTime"},
}
"""Of exporter/clickhouseexporter/internal/sqltemplates; less what only indexes need."""

MESSAGES: dict[Path, dict[str, Any]] = {
    LOGS.proto_file: {
        "AnyValue": common_pb2.AnyValue,
        "KeyValue": common_pb2.KeyValue,
        "LogRecord": logs_pb2.LogRecord,
        "Scope": common_pb2.InstrumentationScope,
        "ScopeLogs": logs_pb2.ScopeLogs,
        "Resource": resource_pb2.Resource,
        "ResourceLogs": logs_pb2.ResourceLogs,
        "LogsRequest": logs_service_pb2.ExportLogsServiceRequest,
    },
    METRICS.proto_file: {
        "AnyValue": common_pb2.AnyValue,
        "KeyValue": common_pb2.KeyValue,
        "Exemplar": metrics_pb2.Exemplar,
        "NumberDataPoint": metrics_pb2.NumberDataPoint,
        "HistogramDataPoint": metrics_pb2.HistogramDataPoint,
        "Buckets": metrics_pb2.ExponentialHistogramDataPoint.Buckets,
        "ExponentialHistogramDataPoint": metrics_pb2.ExponentialHistogramDataPoint,
        "ValueAtQuantile": metrics_pb2.SummaryDataPoint.ValueAtQuantile,
        "SummaryDataPoint": metrics_pb2.SummaryDataPoint,
        "Gauge": metrics_pb2.Gauge,
        "Sum": metrics_pb2.Sum,
        "Histogram": metrics_pb2.Histogram,
        "ExponentialHistogram": metrics_pb2.ExponentialHistogram,
        "Summary": metrics_pb2.Summary,
        "Metric": metrics_pb2.Metric,
        "Scope": common_pb2.InstrumentationScope,
        "ScopeMetrics": metrics_pb2.ScopeMetrics,
        "Resource": resource_pb2.Resource,
        "ResourceMetrics": metrics_pb2.ResourceMetrics,
        "MetricsRequest": metrics_service_pb2.ExportMetricsServiceRequest,
    },
}
PROFILES_ONLY = {"key_strindex", "string_value_strindex"}


@pytest.mark.parametrize("table", COLUMNS)
def test_columns_are_those_of_the_exporter(engine: Engine, table: str) -> None:
    """Names, order and types of the columns are the exporter's, so that SQL written for it runs unchanged."""
    rows = engine.rows(f"describe table tailspan.{table}")
    assert {row[0]: row[1] for row in rows} == COLUMNS[table]
    assert [row[0] for row in rows] == list(COLUMNS[table])


@pytest.mark.parametrize("proto", MESSAGES, ids=lambda path: path.name)
def test_protos_agree_with_opentelemetry(proto: Path) -> None:
    """Every field of the shipped protos has the name, number and repetition of OpenTelemetry's, and none is missing."""
    messages = dict(re.findall(r"^message (\w+) \{(.*?)^\}", proto.read_text(), re.MULTILINE | re.DOTALL))
    assert set(messages) == set(MESSAGES[proto])
    for name, body in messages.items():
        fields = re.findall(r"(repeated )?[\w.]+ (\w+) = (\d+);", body)
        ours = {field: (int(number), bool(repeated)) for repeated, field, number in fields}
        theirs = {
            field.name: (field.number, field.is_repeated)
            for field in MESSAGES[proto][name].DESCRIPTOR.fields
            if field.name not in PROFILES_ONLY
        }
        assert ours == theirs, name


def test_values_become_text_in_the_same_way_everywhere() -> None:
    """The expressions that turn nested values into JSON are the same text in all views that use them."""
    found = {
        path.name: re.search(
            r"    -- The JSON text of a raw ArrayValue.*?\)\) as double_text,", path.read_text(), re.DOTALL
        )
        for path in SQL_FOLDER.glob("*.sql")
    }
    texts = {name: match.group() for name, match in found.items() if match}
    assert len(texts) == 3
    assert len(set(texts.values())) == 1
