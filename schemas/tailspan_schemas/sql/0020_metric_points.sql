create table if not exists tailspan.metric_points -- noqa: PRS
(
    Kind LowCardinality(String) comment 'gauge, sum, histogram, exponential_histogram or summary',
    ResourceAttributes Map(LowCardinality(String), String) comment 'Resource attributes as text, by key',
    ResourceSchemaUrl String comment 'Schema URL of the resource',
    ScopeName String comment 'Instrumentation scope name, the meter',
    ScopeVersion String comment 'Instrumentation scope version',
    ScopeAttributes Map(LowCardinality(String), String) comment 'Scope attributes as text, by key',
    ScopeDroppedAttrCount UInt32 comment 'Scope attributes that the sender dropped, count',
    ScopeSchemaUrl String comment 'Schema URL of the scope',
    ServiceName LowCardinality(String) comment 'Resource attribute service.name',
    MetricName String comment 'Name of the metric',
    MetricDescription String comment 'What the metric measures',
    MetricUnit String comment 'UCUM unit of the metric',
    Attributes Map(LowCardinality(String), String) comment 'Attributes of the point as text, by key',
    StartTimeUnix DateTime64(9) comment 'Begin of what the point sums up, UTC, ns; 1970 if not given',
    TimeUnix DateTime64(9) comment 'Time of the point, UTC, ns',
    Flags UInt32 comment 'OTLP data point flags, bit field; 1 = no recorded value',
    Exemplars Nested(
        FilteredAttributes Map(LowCardinality(String), String),
        TimeUnix DateTime64(9),
        Value Float64,
        SpanId String,
        TraceId String
    )
        comment 'Single measurements with their trace; TimeUnix in UTC, ns, Value in MetricUnit, ids in hex',
    Value Float64 comment 'The value, in MetricUnit; integers beyond 2^53 are rounded',
    Count UInt64 comment 'Values that the point sums up, count',
    Sum Float64 comment 'Sum of the values, in MetricUnit; 0 if not given',
    Min Float64 comment 'Least value, in MetricUnit; 0 if not given',
    Max Float64 comment 'Largest value, in MetricUnit; 0 if not given',
    BucketCounts Array(UInt64) comment 'Values in each bucket, count; one more than bounds',
    ExplicitBounds Array(Float64) comment 'Upper bounds of the buckets but the last, in MetricUnit',
    Scale Int32 comment 'Scale: bucket bounds are powers of 2^(2^-Scale)',
    ZeroCount UInt64 comment 'Values that count as zero, count',
    PositiveOffset Int32 comment 'Index of the first bucket of positive values',
    PositiveBucketCounts Array(UInt64) comment 'Positive values in each bucket, count',
    NegativeOffset Int32 comment 'Index of the first bucket of negative values',
    NegativeBucketCounts Array(UInt64) comment 'Negative values in each bucket, count',
    ValueAtQuantiles Nested(
        Quantile Float64,
        Value Float64
    ) comment 'Quantiles, 0 to 1, and their values in MetricUnit',
    AggregationTemporality Int32 comment 'OTLP temporality: 0 unspecified, 1 delta, 2 cumulative',
    IsMonotonic Bool comment 'Whether the sum only grows'
)
engine = Null
comment 'Points of all metrics on their way to the table of their kind; stores nothing'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
