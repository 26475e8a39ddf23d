create materialized view if not exists tailspan.spans_sample_mv to tailspan.spans_sample as
-- Another hash than the one that spreads traces over shards and the one that rounds weights.
select
    trace_id,
    span_id,
    parent_span_id,
    service,
    instance,
    start,
    duration_ns,
    status_code,
    role,
    stage,
    model,
    engine_id,
    first_step,
    last_step,
    input_tokens,
    output_tokens,
    busy_ns,
    gpu_ns,
    unattributed_ns,
    ttft_ns,
    weight,
    attributes_string,
    attributes_int,
    attributes_double,
    attributes_bool,
    resource
from tailspan.spans
where sipHash64(trace_id) % 4096 < 256 and role in ('request', 'stage')
