create table if not exists tailspan.spans_sample -- noqa: disable=PRS,CP02
(
    trace_id FixedString(16) comment 'Trace id, 16 raw bytes' codec(ZSTD(1)),
    span_id FixedString(8) comment 'Span id, 8 raw bytes' codec(ZSTD(1)),
    parent_span_id FixedString(8) comment 'Span id of the parent, 8 raw bytes; zeros = no parent' codec(ZSTD(1)),
    service LowCardinality(String) comment 'Resource attribute service.name',
    instance LowCardinality(String) comment 'Resource attribute service.instance.id' codec(ZSTD(1)),
    start DateTime64(9, 'UTC') comment 'Begin of the span, UTC, ns' codec(Delta(8), ZSTD(1)),
    duration_ns Int64 comment 'End less begin, ns; negative where the sender said so' codec(T64, ZSTD(1)),
    status_code Int8 comment 'OTLP status: 0 unset, 1 ok, 2 error',
    role LowCardinality(String) comment 'request or stage',
    stage LowCardinality(String) comment 'The stage that a stage span measures',
    model LowCardinality(String) comment 'Model asked for',
    engine_id LowCardinality(String) comment 'The engine instance that ran the request'
        codec(ZSTD(1)),
    first_step Int64 comment 'First engine step of the span; 0 if absent' codec(T64, ZSTD(1)),
    last_step Int64 comment 'Last engine step of the span; 0 if absent' codec(ZSTD(1)),
    input_tokens Int64 comment 'Prompt tokens; 0 if absent' codec(ZSTD(1)),
    output_tokens Int64 comment 'Generated tokens; 0 if absent' codec(ZSTD(1)),
    busy_ns Int64 comment 'Time in which a CPU or GPU worked for the request, ns; 0 if absent' codec(ZSTD(1)),
    gpu_ns Int64 comment 'Time the device computed, ns; -1 = no device measured' codec(T64, ZSTD(1)),
    unattributed_ns Int64 comment 'Request time that no stage covers, ns; 0 if absent' codec(T64, ZSTD(1)),
    ttft_ns Int64 comment 'Begin until the first body chunk left, ns; 0 if absent' codec(ZSTD(1)),
    weight Float64 comment 'How many requests the span stands for in `spans`; of n parts read 4096 / n times as many'
        codec(ZSTD(1)),
    attributes_string Map(LowCardinality(String), String)
        comment 'String attributes that have no column of their own in `spans`' codec(ZSTD(1)),
    attributes_int Map(LowCardinality(String), Int64)
        comment 'Integer attributes that have no column of their own in `spans`' codec(ZSTD(1)),
    attributes_double Map(LowCardinality(String), Float64)
        comment 'Double attributes that have no column of their own in `spans`' codec(ZSTD(1)),
    attributes_bool Map(LowCardinality(String), Bool)
        comment 'Boolean attributes that have no column of their own in `spans`' codec(ZSTD(1)),
    resource LowCardinality(String)
        comment 'Resource attributes: text of an Array(Tuple(String, String)), values as kind, colon, text or protobuf'
        codec(ZSTD(1)),
    whole_weight UInt64 alias
        toUInt64(least(weight, 1e15) + bitShiftRight(cityHash64(trace_id), 32) / 4294967296)
        comment 'weight as a whole number, for weighted quantiles: up or down by trace id so that its mean is weight',
    resource_attributes Map(String, String) alias
        cast(
            arrayMap(
                x -> (x.1, substring(x.2, position(x.2, ':') + 1)), cast(resource, 'Array(Tuple(String, String))')
            ),
            'Map(String, String)'
        )
        comment 'Resource attributes without their kinds, decoded when read'
)
engine = MergeTree
partition by toDate(start)
primary key (sipHash64(trace_id) % 4096, toStartOfFiveMinutes(start))
order by (sipHash64(trace_id) % 4096, toStartOfFiveMinutes(start), trace_id, start)
settings non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Request and stage spans of one trace in 16, those with sipHash64(trace_id) % 4096 < 256, for long windows'
