create table if not exists tailspan.traces -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id, 16 raw bytes' codec(ZSTD(1)),
    day Date comment 'Day on which the first span of the insert began, UTC',
    start SimpleAggregateFunction(min, DateTime64(9, 'UTC'))
        comment 'Begin of the earliest span, UTC, ns' codec(Delta(8), ZSTD(1)),
    end SimpleAggregateFunction(max, DateTime64(9, 'UTC'))
        comment 'End of the latest span, UTC, ns' codec(Delta(8), ZSTD(1)),
    last_start SimpleAggregateFunction(max, DateTime64(9, 'UTC'))
        comment 'Begin of the latest span, UTC, ns' codec(Delta(8), ZSTD(1)),
    span_count SimpleAggregateFunction(sum, UInt64) comment 'Spans, count' codec(T64, ZSTD(1)),
    error_count SimpleAggregateFunction(sum, UInt64) comment 'Spans with status error, count' codec(T64, ZSTD(1)),
    request_count SimpleAggregateFunction(sum, UInt64) comment 'Request spans, count' codec(T64, ZSTD(1)),
    step_count SimpleAggregateFunction(sum, UInt64) comment 'Engine step spans, count' codec(T64, ZSTD(1)),
    weight SimpleAggregateFunction(max, Float64)
        comment 'How many traces this one stands for: the largest weight of its spans' codec(ZSTD(1)),
    root_service SimpleAggregateFunction(max, LowCardinality(String))
        comment 'Service of the span without parent; empty if not seen',
    root_name SimpleAggregateFunction(max, LowCardinality(String))
        comment 'Name of the span without parent; empty if not seen',
    index trace_id_hex lower(hex(trace_id)) type minmax granularity 1
)
engine = AggregatingMergeTree
partition by day
order by (trace_id, day)
settings non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Index of traces by id; rows of one trace are parts of one until they merge: read trace_summaries'
