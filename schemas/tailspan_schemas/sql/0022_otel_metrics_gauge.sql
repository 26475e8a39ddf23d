create table if not exists tailspan.otel_metrics_gauge -- noqa: PRS
(
    ResourceAttributes Map(LowCardinality(String), String) comment 'Resource attributes as text, by key' codec(ZSTD(1)),
    ResourceSchemaUrl String comment 'Schema URL of the resource' codec(ZSTD(1)),
    ScopeName String comment 'Instrumentation scope name, the meter' codec(ZSTD(1)),
    ScopeVersion String comment 'Instrumentation scope version' codec(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) comment 'Scope attributes as text, by key' codec(ZSTD(1)),
    ScopeDroppedAttrCount UInt32 comment 'Scope attributes that the sender dropped, count' codec(ZSTD(1)),
    ScopeSchemaUrl String comment 'Schema URL of the scope' codec(ZSTD(1)),
    ServiceName LowCardinality(String) comment 'Resource attribute service.name' codec(ZSTD(1)),
    MetricName String comment 'Name of the metric' codec(ZSTD(1)),
    MetricDescription String comment 'What the metric measures' codec(ZSTD(1)),
    MetricUnit String comment 'UCUM unit of the metric' codec(ZSTD(1)),
    Attributes Map(LowCardinality(String), String) comment 'Attributes of the point as text, by key' codec(ZSTD(1)),
    StartTimeUnix DateTime64(9)
        comment 'Begin of what the point sums up, UTC, ns; 1970 if not given' codec(Delta(8), ZSTD(1)),
    TimeUnix DateTime64(9) comment 'Time of the point, UTC, ns' codec(Delta(8), ZSTD(1)),
    Value Float64 comment 'The value, in MetricUnit; integers beyond 2^53 are rounded' codec(Gorilla, ZSTD(1)),
    Flags UInt32 comment 'OTLP data point flags, bit field; 1 = no recorded value' codec(T64, ZSTD(1)),
    Exemplars Nested(
        FilteredAttributes Map(LowCardinality(String), String),
        TimeUnix DateTime64(9),
        Value Float64,
        SpanId String,
        TraceId String
    )
        comment 'Single measurements with their trace; TimeUnix in UTC, ns, Value in MetricUnit, ids in hex' codec(ZSTD(1)),
    index time_range TimeUnix type minmax granularity 1
)
engine = MergeTree
partition by toDate(TimeUnix)
order by (ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix)
settings non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Every point of a gauge metric, with the columns of the OpenTelemetry Collector''s ClickHouse exporter'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
