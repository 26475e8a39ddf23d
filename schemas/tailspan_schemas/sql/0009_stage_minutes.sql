create table if not exists tailspan.stage_minutes -- noqa: PRS
(
    minute DateTime('UTC') comment 'Minute in which the span began, UTC',
    service LowCardinality(String) comment 'Service that served the requests',
    instance LowCardinality(String) comment 'Instance of the service',
    model LowCardinality(String) comment 'Model asked for',
    stage LowCardinality(String)
        comment 'Stage; request = end-to-end; unattributed = what no stage of a request covers',
    span_count SimpleAggregateFunction(sum, UInt64) comment 'Spans stored, count; the columns below weight each by weight',
    count SimpleAggregateFunction(sum, Float64) comment 'Stages or requests that the spans stand for, count',
    error_count SimpleAggregateFunction(sum, Float64) comment 'Of these, with status error, count',
    input_tokens SimpleAggregateFunction(sum, Float64) comment 'Prompt tokens; only in rows of stage request, count',
    output_tokens SimpleAggregateFunction(sum, Float64)
        comment 'Generated tokens; only in rows of stage request, count',
    wall_sum_ns SimpleAggregateFunction(sum, Float64) comment 'Sum of wall times, ns',
    wall_max_ns SimpleAggregateFunction(max, UInt64) comment 'Longest wall time, ns',
    busy_sum_ns SimpleAggregateFunction(sum, Float64) comment 'Sum of busy times, ns',
    busy_max_ns SimpleAggregateFunction(max, UInt64) comment 'Longest busy time, ns',
    gpu_count SimpleAggregateFunction(sum, Float64) comment 'Of count, with a device time, count',
    gpu_sum_ns SimpleAggregateFunction(sum, Float64) comment 'Sum of device times, ns',
    gpu_max_ns SimpleAggregateFunction(max, UInt64) comment 'Longest device time, ns',
    wall_q AggregateFunction(quantilesBFloat16Weighted(0.5, 0.9, 0.95, 0.99, 0.999), Float32, UInt64)
        comment 'Sketch of wall times, ns, error 0.8 %; read with quantilesBFloat16WeightedMerge and the same levels',
    busy_q AggregateFunction(quantilesBFloat16Weighted(0.5, 0.9, 0.95, 0.99, 0.999), Float32, UInt64)
        comment 'Sketch of busy times, ns, as wall_q',
    gpu_q AggregateFunction(quantilesBFloat16Weighted(0.5, 0.9, 0.95, 0.99, 0.999), Float32, UInt64)
        comment 'Sketch of measured device times, ns, as wall_q'
)
engine = AggregatingMergeTree
partition by toDate(minute)
-- By the hour, and without the minute, which would hide the hour from conditions on it: a part of an hour reads that
-- hour and no more. Rows are large, 1 KB of sketches each, so granules are small.
primary key (stage, toStartOfHour(minute), service, model)
order by (stage, toStartOfHour(minute), service, model, instance, minute)
settings
    index_granularity = 512,
    non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1,
    fsync_part_directory = 1
comment 'Times of every stage by minute; rows of one key are parts of one sum until they merge: always aggregate'
