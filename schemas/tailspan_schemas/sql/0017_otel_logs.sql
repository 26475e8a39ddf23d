create table if not exists tailspan.otel_logs -- noqa: PRS
(
    Timestamp DateTime64(9)
        comment 'Time of the event, UTC, ns; when it was observed if the sender gave none' codec(Delta(8), ZSTD(1)),
    TimestampTime DateTime default toDateTime(Timestamp)
        comment 'Timestamp in whole seconds, UTC' codec(Delta(4), ZSTD(1)),
    TraceId String comment 'Trace id, 32 hex digits; empty if there is none' codec(ZSTD(1)),
    SpanId String comment 'Span id, 16 hex digits; empty if there is none' codec(ZSTD(1)),
    TraceFlags UInt8 comment 'W3C trace flags, bit field',
    SeverityText LowCardinality(String) comment 'Severity as the source calls it' codec(ZSTD(1)),
    SeverityNumber UInt8 comment 'OTLP severity, 1 (trace) to 24 (fatal); 0 unspecified',
    ServiceName LowCardinality(String) comment 'Resource attribute service.name' codec(ZSTD(1)),
    Body String comment 'Text of the record; of a structured body its JSON' codec(ZSTD(1)),
    ResourceSchemaUrl LowCardinality(String) comment 'Schema URL of the resource' codec(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String)
        comment 'Resource attributes as text, by key' codec(ZSTD(1)),
    ScopeSchemaUrl LowCardinality(String) comment 'Schema URL of the scope' codec(ZSTD(1)),
    ScopeName String comment 'Instrumentation scope name, the logger' codec(ZSTD(1)),
    ScopeVersion LowCardinality(String) comment 'Instrumentation scope version' codec(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) comment 'Scope attributes as text, by key' codec(ZSTD(1)),
    LogAttributes Map(LowCardinality(String), String) comment 'Attributes of the record as text, by key' codec(ZSTD(1)),
    EventName String comment 'Name of the event that the record is; empty for other records' codec(ZSTD(1)),
    index time_range Timestamp type minmax granularity 1,
    index second_range TimestampTime type minmax granularity 1,
    index trace_id_filter TraceId type bloom_filter(0.001) granularity 1,
    index body_words lower(Body) type tokenbf_v1(32768, 3, 0) granularity 8
)
engine = MergeTree
partition by toDate(Timestamp)
order by (toStartOfFiveMinutes(Timestamp), ServiceName, Timestamp)
settings non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Every log record, one row each, with the columns of the OpenTelemetry Collector''s ClickHouse exporter'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
