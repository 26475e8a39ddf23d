create materialized view if not exists tailspan.stage_minutes_mv to tailspan.stage_minutes as
with
    spans_with_measures as (
        select
            toDateTime(toStartOfMinute(start), 'UTC') as minute,
            service,
            instance,
            model,
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
    count() as count,
    countIf(status_code = 2) as error_count,
    sum(prompt_tokens) as input_tokens,
    sum(generated_tokens) as output_tokens,
    sum(wall_ns) as wall_sum_ns,
    max(wall_ns) as wall_max_ns,
    sum(busy_ns) as busy_sum_ns,
    max(busy_ns) as busy_max_ns,
    countIf(has_gpu) as gpu_count,
    sum(gpu_ns) as gpu_sum_ns,
    max(gpu_ns) as gpu_max_ns,
    quantilesDDState(0.01, 0.5, 0.9, 0.95, 0.99, 0.999)(wall_ns) as wall_q,
    quantilesDDState(0.01, 0.5, 0.9, 0.95, 0.99, 0.999)(busy_ns) as busy_q,
    quantilesDDStateIf(0.01, 0.5, 0.9, 0.95, 0.99, 0.999)(gpu_ns, has_gpu) as gpu_q
from measured
group by minute, service, instance, model, stage
