"""Metric points reach the five `otel_metrics_*` tables as the Collector's exporter would store them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
    Summary,
    SummaryDataPoint,
)
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from tailspan_collector.embedded import Engine
from tailspan_collector.signals import METRICS
from tests.schemas.otlp import (
    ATTRIBUTES,
    GENERATE,
    SPAN_ID,
    TEXT,
    TIME,
    TRACE_ID,
    hex_id,
    insert,
    ns,
    pairs,
    records,
    same_attributes,
)

CASES = itertools.count()
UINT64 = st.sampled_from([0, 1, 2**32, 2**53 + 1, 2**63, 2**64 - 1])
FIXED64 = st.sampled_from([0, -1, 2**53 + 1, 2**63 - 1, -(2**63)])
NUMBER: st.SearchStrategy[dict[str, float]] = st.one_of(
    st.just({}),
    st.floats().map(lambda number: {"as_double": number}),
    FIXED64.map(lambda number: {"as_int": number}),
)
EXEMPLAR = st.builds(
    lambda number, **fields: Exemplar(**number, **fields),
    NUMBER,
    time_unix_nano=TIME,
    trace_id=TRACE_ID,
    span_id=SPAN_ID,
    filtered_attributes=ATTRIBUTES,
)
COMMON: dict[str, Any] = {"start_time_unix_nano": TIME, "time_unix_nano": TIME, "attributes": ATTRIBUTES}
EXEMPLARS = st.lists(EXEMPLAR, max_size=3)
NUMBER_POINT = st.builds(
    lambda number, **fields: NumberDataPoint(**number, **fields), NUMBER, exemplars=EXEMPLARS, **COMMON
)
HISTOGRAM_POINT = st.builds(
    lambda given, **fields: HistogramDataPoint(**given, **fields),
    st.one_of(st.just({}), st.fixed_dictionaries({"sum": st.floats(), "min": st.floats(), "max": st.floats()})),
    count=UINT64,
    bucket_counts=st.lists(UINT64, max_size=5),
    explicit_bounds=st.lists(st.floats(), max_size=4),
    exemplars=EXEMPLARS,
    **COMMON,
)
BUCKETS = st.builds(
    ExponentialHistogramDataPoint.Buckets,
    offset=st.integers(-(2**31), 2**31 - 1),
    bucket_counts=st.lists(UINT64, max_size=5),
)
EXPONENTIAL_POINT = st.builds(
    ExponentialHistogramDataPoint,
    count=UINT64,
    sum=st.floats(),
    scale=st.integers(-(2**31), 2**31 - 1),
    zero_count=UINT64,
    positive=BUCKETS,
    negative=BUCKETS,
    min=st.floats(),
    max=st.floats(),
    exemplars=EXEMPLARS,
    **COMMON,
)
SUMMARY_POINT = st.builds(
    SummaryDataPoint,
    count=UINT64,
    sum=st.floats(),
    quantile_values=st.lists(
        st.builds(SummaryDataPoint.ValueAtQuantile, quantile=st.floats(0, 1), value=st.floats()), max_size=3
    ),
    **COMMON,
)
TEMPORALITY = st.integers(0, 2)
METRIC = st.one_of(
    st.just({}),
    st.builds(Gauge, data_points=st.lists(NUMBER_POINT, max_size=3)).map(lambda data: {"gauge": data}),
    st.builds(
        Sum,
        data_points=st.lists(NUMBER_POINT, max_size=3),
        aggregation_temporality=TEMPORALITY,
        is_monotonic=st.booleans(),
    ).map(lambda data: {"sum": data}),
    st.builds(Histogram, data_points=st.lists(HISTOGRAM_POINT, max_size=3), aggregation_temporality=TEMPORALITY).map(
        lambda data: {"histogram": data}
    ),
    st.builds(
        ExponentialHistogram, data_points=st.lists(EXPONENTIAL_POINT, max_size=3), aggregation_temporality=TEMPORALITY
    ).map(lambda data: {"exponential_histogram": data}),
    st.builds(Summary, data_points=st.lists(SUMMARY_POINT, max_size=3)).map(lambda data: {"summary": data}),
)
SCALARS = {
    "histogram": {"Count": "count", "Sum": "sum", "Min": "min", "Max": "max"},
    "exponential_histogram": {
        "Count": "count", "Sum": "sum", "Min": "min", "Max": "max", "Scale": "scale", "ZeroCount": "zero_count",
        "PositiveOffset": "positive.offset", "PositiveBucketCounts": "positive.bucket_counts",
        "NegativeOffset": "negative.offset", "NegativeBucketCounts": "negative.bucket_counts",
    },
    "summary": {"Count": "count", "Sum": "sum"},
}  # fmt: skip
"""Column -> field of the point, where the value is stored as it is."""


def rows_of(engine: Engine, kind: str, scope: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of a scope by the description of their metric and the number that the test wrote into flags."""
    exemplars = (
        ""
        if kind == "summary"
        else "arrayMap(t -> reinterpretAsUInt64(toUnixTimestamp64Nano(t)), `Exemplars.TimeUnix`) as exemplar_times, "
        "cast(`Exemplars.FilteredAttributes`, 'Array(Array(Tuple(String, String)))') as exemplar_pairs, "
    )
    found = records(
        engine,
        f"select *, {exemplars}{ns('StartTimeUnix')} as start_ns, {ns('TimeUnix')} as time_ns, "
        f"{pairs('Attributes')} as pairs, {pairs('ResourceAttributes')} as resource_pairs, "
        f"{pairs('ScopeAttributes')} as scope_pairs from tailspan.otel_metrics_{kind} where ScopeName = '{scope}'",
    )
    return {(row["MetricDescription"], row["Flags"]): row for row in found}


def same_number(stored: Any, sent: float) -> bool:
    """Say whether a stored number is the one that was sent; NaN is NaN, and JSON has names for what is not finite."""
    if isinstance(sent, int):
        return bool(stored == sent)
    number = float(stored)
    return math.isnan(sent) if math.isnan(number) else number == float(sent)


def number_of(point: NumberDataPoint | Exemplar) -> float:
    """Return the value of a point as the tables hold it: a double, 0 if there is none."""
    return point.as_double if point.WhichOneof("value") == "as_double" else float(point.as_int)


@settings(max_examples=30, deadline=None, phases=GENERATE)
@given(st.lists(METRIC, min_size=1, max_size=5), ATTRIBUTES, ATTRIBUTES, TEXT)
def test_every_field_of_a_point_is_stored(
    engine: Engine, kinds: list[dict[str, Any]], resource: list[Any], scope: list[Any], text: str
) -> None:
    """Every kind of point, temporality and value is stored field by field: NaN, 2^63, empty values, exemplars too."""
    name = f"case {next(CASES)}"
    message = ExportMetricsServiceRequest()
    resources = message.resource_metrics.add(schema_url=f"resource {text}")
    resources.resource.attributes.extend(resource)
    scopes = resources.scope_metrics.add(schema_url=f"scope {text}")
    scopes.scope.name, scopes.scope.version, scopes.scope.dropped_attributes_count = name, text, 7
    scopes.scope.attributes.extend(scope)
    for number, kind in enumerate(kinds):
        metric = scopes.metrics.add()
        metric.CopyFrom(Metric(name=f"metric {text}", description=str(number), unit=text, **kind))
        for index, point in enumerate(points_of(metric)):
            point.flags = index
    insert(engine, METRICS, message.SerializeToString())
    for table in ("gauge", "sum", "histogram", "exponential_histogram", "summary"):
        metrics = [metric for metric in scopes.metrics if metric.WhichOneof("data") == table]
        rows = rows_of(engine, table, name)
        assert len(rows) == sum(len(points_of(metric)) for metric in metrics)
        for metric in metrics:
            for point in points_of(metric):
                row = rows[metric.description, point.flags]
                assert (row["MetricName"], row["MetricUnit"]) == (metric.name, metric.unit)
                assert (row["start_ns"], row["time_ns"]) == (point.start_time_unix_nano, point.time_unix_nano)
                assert same_attributes(row["pairs"], point.attributes)
                assert same_attributes(row["resource_pairs"], resources.resource.attributes)
                assert same_attributes(row["scope_pairs"], scopes.scope.attributes)
                assert (row["ResourceSchemaUrl"], row["ScopeSchemaUrl"]) == (resources.schema_url, scopes.schema_url)
                assert (row["ScopeVersion"], row["ScopeDroppedAttrCount"]) == (text, 7)
                check_values(row, metric, point, table)


def points_of(metric: Metric) -> Any:
    """Return the points of a metric of any kind."""
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else []


def check_values(row: dict[str, Any], metric: Metric, point: Any, kind: str) -> None:
    """Compare what only some kinds have."""
    data = getattr(metric, kind)
    if kind in ("gauge", "sum"):
        assert same_number(row["Value"], number_of(point))
    if kind == "sum":
        assert row["IsMonotonic"] == data.is_monotonic
    if kind in ("sum", "histogram", "exponential_histogram"):
        assert row["AggregationTemporality"] == data.aggregation_temporality
    for column, path in SCALARS.get(kind, {}).items():
        sent = point
        for part in path.split("."):
            sent = getattr(sent, part)
        assert list(row[column]) == list(sent) if isinstance(row[column], list) else same_number(row[column], sent)
    if kind == "histogram":
        assert row["BucketCounts"] == list(point.bucket_counts)
        assert all(map(same_number, row["ExplicitBounds"], point.explicit_bounds))
    if kind == "summary":
        sent_quantiles = [item.quantile for item in point.quantile_values]
        assert row["ValueAtQuantiles.Quantile"] == sent_quantiles
        assert all(map(same_number, row["ValueAtQuantiles.Value"], [item.value for item in point.quantile_values]))
        return
    assert row["exemplar_times"] == [item.time_unix_nano for item in point.exemplars]
    assert row["Exemplars.TraceId"] == [hex_id(item.trace_id) for item in point.exemplars]
    assert row["Exemplars.SpanId"] == [hex_id(item.span_id) for item in point.exemplars]
    assert all(map(same_number, row["Exemplars.Value"], map(number_of, point.exemplars)))
    assert len(row["exemplar_pairs"]) == len(point.exemplars)
    for stored, item in zip(row["exemplar_pairs"], point.exemplars, strict=True):
        assert same_attributes(stored, item.filtered_attributes)


def test_metrics_of_the_sdk_are_stored(engine: Engine) -> None:
    """Counters, gauges, histograms of both kinds and their exemplars, as the OpenTelemetry SDK sends them."""
    reader = InMemoryMetricReader()
    view = View(instrument_name="gaps", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider(
        [reader], Resource({"service.name": "sdk metrics"}), AlwaysOnExemplarFilter(), views=[view]
    )
    meter = provider.get_meter("worker")

    def running(_: CallbackOptions) -> list[Observation]:
        return [Observation(3, {"engine": "0"})]

    meter.create_observable_gauge("running", [running])
    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        meter.create_counter("tokens", "{token}").add(17, {"kind": "prompt"})
        meter.create_histogram("ttft", "s").record(0.3, {"model": "m"})
        meter.create_histogram("gaps", "s").record(0.02)
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    data = reader.get_metrics_data()
    assert data is not None
    insert(engine, METRICS, encode_metrics(data).SerializeToString())
    provider.shutdown()
    where = "where ServiceName = 'sdk metrics'"
    assert engine.rows(f"select MetricName, Value, Attributes['engine'] from tailspan.otel_metrics_gauge {where}") == [
        ["running", "3", "0"]
    ]
    assert engine.rows(
        "select MetricName, MetricUnit, Value, Attributes['kind'], AggregationTemporality, IsMonotonic, "
        f"Exemplars.TraceId[1] from tailspan.otel_metrics_sum {where}"
    ) == [["tokens", "{token}", "17", "prompt", "2", "true", trace_id]]
    ((count, total, buckets, found),) = engine.rows(
        f"select Count, Sum, arraySum(BucketCounts), Exemplars.TraceId[1] from tailspan.otel_metrics_histogram {where}"
    )
    assert (count, buckets, found) == ("1", "1", trace_id)
    assert float(total) == pytest.approx(0.3)
    ((count, low, high),) = engine.rows(
        "select Count, exp2(exp2(-Scale) * PositiveOffset), exp2(exp2(-Scale) * (PositiveOffset + 1)) "
        f"from tailspan.otel_metrics_exponential_histogram {where}"
    )
    assert count == "1"
    assert float(low) <= 0.02 <= float(high)


def test_a_repeated_insert_is_stored_once(engine: Engine) -> None:
    """A batch that is inserted again with its token changes nothing in any table, though it passes a table between."""
    message = ExportMetricsServiceRequest()
    scopes = message.resource_metrics.add().scope_metrics.add()
    scopes.scope.name = "repeated"
    scopes.metrics.add(name="a").gauge.data_points.add(as_int=1, time_unix_nano=1_764_000_000_000_000_000)
    scopes.metrics.add(name="b").summary.data_points.add(count=1, time_unix_nano=1_764_000_000_000_000_000)
    for _ in range(3):
        insert(engine, METRICS, message.SerializeToString(), token="repeated")
    for table in ("gauge", "summary"):
        assert engine.rows(f"select count() from tailspan.otel_metrics_{table} where ScopeName = 'repeated'") == [["1"]]


def test_a_series_is_read_from_few_granules(engine: Engine) -> None:
    """A metric of a service within an hour is found by the primary key, not by reading all metrics."""
    engine.command(
        "insert into tailspan.otel_metrics_gauge (ServiceName, MetricName, TimeUnix, Attributes, Value) select 'many', "
        "concat('metric', toString(number % 50)), fromUnixTimestamp64Nano(1765000000000000000 + number * 10000000), "
        "map('k', toString(number % 7)), 1 from numbers(400000)"
    )
    engine.command("optimize table tailspan.otel_metrics_gauge final")
    plan = "\n".join(
        row[0]
        for row in engine.rows(
            "explain indexes = 1 select avg(Value) from tailspan.otel_metrics_gauge where ServiceName = 'many' and "
            "MetricName = 'metric3' and TimeUnix between '2025-12-06 06:00:00' and '2025-12-06 06:05:00'"
        )
    )
    read = next(line for line in plan.splitlines() if "Granules" in line)
    assert int(read.rsplit(":", 1)[1]) <= 3, plan
