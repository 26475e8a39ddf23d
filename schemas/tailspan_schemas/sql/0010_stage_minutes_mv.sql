create materialized view if not exists tailspan.stage_minutes_mv to tailspan.stage_minutes as
with
    -- The middle of the bucket that a time falls into: buckets are 1.6 % wide at most, so it is within 0.8 %.
    (ns -> reinterpretAsFloat32(bitOr(bitAnd(reinterpretAsUInt32(toFloat32(ns)), 0xFFFE0000), 0x10000))) as middle_ns,

    spans_with_measures as (
        select
            toDateTime(toStartOfMinute(start), 'UTC') as minute,
            service,
            instance,
            model,
            weight,
            whole_weight,
            status_code,
            input_tokens,
            output_tokens,
            if(
                role = 'request',
                [
                    ('request', duration_ns, busy_ns, gpu_ns),
                    ('unattributed', unattributed_ns, toInt64(0), toInt64(-1))
                ],
                [(toString(stage), duration_ns, busy_ns, gpu_ns)]
            ) as measures
        from tailspan.spans
        where role in ('request', 'stage')
    ),

    measured as (
        select
            minute,
            service,
            instance,
            model,
            weight,
            whole_weight,
            toLowCardinality(measure.1) as stage,
            status_code,
            if(measure.1 = 'request', input_tokens, 0) as prompt_tokens,
            if(measure.1 = 'request', output_tokens, 0) as generated_tokens,
            toUInt64(greatest(measure.2, 0)) as wall_ns,
            toUInt64(greatest(measure.3, 0)) as busy_ns,
            toUInt64(greatest(measure.4, 0)) as gpu_ns,
            measure.4 >= 0 as has_gpu
        from spans_with_measures
        array join measures as measure
    )

select
    minute,
    service,
    instance,
    model,
    stage,
    count() as span_count,
    sum(weight) as count,
    sumIf(weight, status_code = 2) as error_count,
    sum(prompt_tokens * weight) as input_tokens,
    sum(generated_tokens * weight) as output_tokens,
    sum(wall_ns * weight) as wall_sum_ns,
    max(wall_ns) as wall_max_ns,
    sum(busy_ns * weight) as busy_sum_ns,
    max(busy_ns) as busy_max_ns,
    sumIf(weight, has_gpu) as gpu_count,
    sum(gpu_ns * weight) as gpu_sum_ns,
    max(gpu_ns) as gpu_max_ns,
    quantilesBFloat16WeightedState(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(wall_ns), whole_weight) as wall_q,
    quantilesBFloat16WeightedState(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(busy_ns), whole_weight) as busy_q,
    quantilesBFloat16WeightedStateIf(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(gpu_ns), whole_weight, has_gpu) as gpu_q
from measured
group by minute, service, instance, model, stage
