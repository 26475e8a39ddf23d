create materialized view if not exists tailspan.engine_minutes_mv to tailspan.stage_minutes as
with
    -- As in stage_minutes_mv: the middle of the bucket that a time falls into.
    (ns -> reinterpretAsFloat32(bitOr(bitAnd(reinterpretAsUInt32(toFloat32(ns)), 0xFFFE0000), 0x10000))) as middle_ns,

    measured as (
        select
            toDateTime(toStartOfMinute(start + toIntervalNanosecond(measure.2)), 'UTC') as minute,
            service,
            instance,
            model,
            toLowCardinality(measure.1) as stage,
            status_code,
            if(measure.1 = 'request', engine_requests.input_tokens, 0) as prompt_tokens,
            if(measure.1 = 'request', engine_requests.output_tokens, 0) as generated_tokens,
            toUInt64(measure.3) as wall_ns
        from tailspan.engine_requests
        array join
            arrayConcat(
                [('request', toInt64(0), e2e_ns), ('unattributed', toInt64(0), unattributed_ns)],
                arrayZip(cast(stages.stage, 'Array(String)'), stages.offset_ns, stages.wall_ns)
            ) as measure
    )

select
    minute,
    service,
    instance,
    model,
    stage,
    count() as span_count,
    toFloat64(count()) as count,
    toFloat64(countIf(status_code = 2)) as error_count,
    toFloat64(sum(prompt_tokens)) as input_tokens,
    toFloat64(sum(generated_tokens)) as output_tokens,
    sum(toFloat64(wall_ns)) as wall_sum_ns,
    max(wall_ns) as wall_max_ns,
    quantilesBFloat16WeightedState(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(wall_ns), toUInt64(1)) as wall_q,
    quantilesBFloat16WeightedState(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(toUInt64(0)), toUInt64(1)) as busy_q
from measured
group by minute, service, instance, model, stage
