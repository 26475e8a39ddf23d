create materialized view if not exists tailspan.stage_minutes_mv to tailspan.stage_minutes as
-- One level and few conversions, as every insert analyses this text anew; see spans_mv.
with
    -- The middle of the bucket that a time falls into: buckets are 1.6 % wide at most, so it is within 0.8 %.
    (ns -> reinterpretAsFloat32(bitOr(bitAnd(reinterpretAsUInt32(toFloat32(ns)), 0xFFFE0000), 0x10000))) as middle_ns,
    measure.1 as of_stage,
    toUInt64(greatest(measure.2, 0)) as wall_ns,
    toUInt64(greatest(measure.3, 0)) as sent_busy_ns,
    toUInt64(greatest(measure.4, 0)) as sent_gpu_ns,
    measure.4 >= 0 as has_gpu
select
    toStartOfMinute(start) as minute,
    service,
    instance,
    model,
    of_stage as stage,
    count() as span_count,
    sum(weight) as count,
    sumIf(weight, status_code = 2) as error_count,
    sumIf(spans.input_tokens * weight, of_stage = 'request') as input_tokens,
    sumIf(spans.output_tokens * weight, of_stage = 'request') as output_tokens,
    sum(wall_ns * weight) as wall_sum_ns,
    max(wall_ns) as wall_max_ns,
    sum(sent_busy_ns * weight) as busy_sum_ns,
    max(sent_busy_ns) as busy_max_ns,
    sumIf(weight, has_gpu) as gpu_count,
    sum(sent_gpu_ns * weight) as gpu_sum_ns,
    max(sent_gpu_ns) as gpu_max_ns,
    quantilesBFloat16WeightedState(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(wall_ns), whole_weight) as wall_q,
    quantilesBFloat16WeightedState(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(sent_busy_ns), whole_weight) as busy_q,
    quantilesBFloat16WeightedStateIf(0.5, 0.9, 0.95, 0.99, 0.999)(middle_ns(sent_gpu_ns), whole_weight, has_gpu)
        as gpu_q
from tailspan.spans
array join
    multiIf(
        role = 'request',
        [
            ('request', duration_ns, busy_ns, gpu_ns),
            ('unattributed', unattributed_ns, toInt64(0), toInt64(-1))
        ],
        role = 'stage',
        [(toString(spans.stage), duration_ns, busy_ns, gpu_ns)],
        []
    ) as measure
group by minute, service, instance, model, stage
