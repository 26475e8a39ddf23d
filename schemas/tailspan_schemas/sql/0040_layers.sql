create table if not exists tailspan.layers -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id of the step, 16 raw bytes; a step is a trace of its own' codec(ZSTD(1)),
    span_id FixedString(8) comment 'Span id of the step, 8 raw bytes' codec(ZSTD(1)),
    service LowCardinality(String) comment 'Service that runs the engine',
    instance LowCardinality(String) comment 'Instance of the service' codec(ZSTD(1)),
    model LowCardinality(String) comment 'Model that the engine runs',
    engine_id LowCardinality(String) comment 'The engine instance' codec(ZSTD(1)),
    step Int64 comment 'Number of the step within its engine' codec(Delta(8), ZSTD(1)),
    start DateTime64(9, 'UTC') comment 'Begin of the step, UTC, ns' codec(Delta(8), ZSTD(1)),
    phase LowCardinality(String) comment 'prefill if the step computed prompt tokens, else decode',
    layer Int16 comment 'Number of the decoder layer from 0; -1 = outside of the layers' codec(ZSTD(1)),
    kind LowCardinality(String)
        comment 'Part of the model: embedding, norm, attention, mlp, experts, mixer, lm_head, sampler or other'
        codec(ZSTD(1)),
    ns Float64 comment 'Device time of the part in this step, ns' codec(ZSTD(1)),
    step_ns Float64 comment 'Device time of all parts of the step together, ns' codec(ZSTD(1)),
    prefill_tokens Int64 comment 'Prompt tokens that the step computed, count' codec(T64, ZSTD(1)),
    decode_tokens Int64 comment 'Decode tokens that the step computed, count' codec(T64, ZSTD(1)),
    requests Int64 comment 'Requests in the batch, count' codec(T64, ZSTD(1)),
    mode LowCardinality(String) comment 'How the step ran: eager, or graph for a CUDA graph with events in it',
    device LowCardinality(String) comment 'Clock of the times: cuda, rocm, or cpu for the host clock',
    steps Float64 comment 'Steps of its phase that this one stands for, count; times the weight of its span'
        codec(ZSTD(1)),
    cost_ns Int64 comment 'Host time that timing the parts took from the step, ns; 0 if absent' codec(T64, ZSTD(1)),
    whole_steps UInt64 alias toUInt64(steps + bitShiftRight(cityHash64(trace_id), 32) / 4294967296)
        comment 'steps as a whole number, right in the mean; for weighted quantiles',
    index trace_id_filter trace_id type bloom_filter(0.001) granularity 1
)
engine = MergeTree
partition by toDate(start)
primary key (toStartOfFiveMinutes(start), model, engine_id)
order by (toStartOfFiveMinutes(start), model, engine_id, start, layer, kind)
settings non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Times of the parts of the model in sampled engine steps, one row for each step and part'
