create table if not exists tailspan.engine_requests -- noqa: PRS
(
    engine LowCardinality(String) comment 'Engine whose own tracing reported the request: vllm or sglang',
    trace_id FixedString(16) comment 'Trace id, 16 raw bytes' codec(ZSTD(1)),
    span_id FixedString(8) comment 'Span id of the engine''s span, 8 raw bytes' codec(ZSTD(1)),
    parent_span_id FixedString(8) comment 'Span id of the caller''s span, 8 raw bytes; zeros = none' codec(ZSTD(1)),
    service LowCardinality(String) comment 'Resource attribute service.name',
    instance LowCardinality(String) comment 'Resource attribute service.instance.id',
    model LowCardinality(String) comment 'Model asked for or, if not given, the one that answered; empty if neither is',
    name LowCardinality(String) comment 'Span name',
    request_id String comment 'gen_ai.request.id: the engine''s request id' codec(ZSTD(1)),
    start DateTime64(9, 'UTC') comment 'When the engine''s server had the request, UTC, ns' codec(Delta(8), ZSTD(1)),
    e2e_ns Int64 comment 'End-to-end time as the engine has it, ns' codec(T64, ZSTD(1)),
    ttft_ns Int64 comment 'Time to the first token as the engine has it, ns; 0 if there was none' codec(T64, ZSTD(1)),
    stages Nested(
        stage LowCardinality(String),
        offset_ns Int64,
        wall_ns Int64
    ) comment 'Stages in order; offset from start and wall time in ns; they do not overlap' codec(ZSTD(1)),
    unattributed_ns Int64 comment 'Part of the end-to-end time that no stage covers, ns' codec(T64, ZSTD(1)),
    input_tokens Int64 comment 'Prompt tokens, count' codec(T64, ZSTD(1)),
    output_tokens Int64 comment 'Generated tokens, count' codec(T64, ZSTD(1)),
    status_code Int8 comment 'OTLP status: 0 unset, 1 ok, 2 error',
    status_message String comment 'Text of the status' codec(ZSTD(1)),
    error_type String comment 'error.type: class of the error that ended the request; empty without one' codec(ZSTD(1)),
    index trace_id_filter trace_id type bloom_filter(0.001) granularity 1,
    index request_id_filter request_id type bloom_filter(0.001) granularity 1
)
engine = MergeTree
partition by toDate(start)
primary key (toStartOfFiveMinutes(start), model, trace_id)
order by (toStartOfFiveMinutes(start), model, trace_id, start)
settings non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Requests that only an engine''s own tracing reported, one row each; tailspan''s instrumentation did not see them'
