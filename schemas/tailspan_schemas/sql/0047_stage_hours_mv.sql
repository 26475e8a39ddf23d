create materialized view if not exists tailspan.stage_hours_mv to tailspan.stage_hours as
-- Sees the rows of an insert of spans once stage_minutes_mv or engine_minutes_mv has added them up: a few hundred.
select
    toStartOfHour(minute) as hour,
    service,
    model,
    stage,
    sum(stage_minutes.span_count) as span_count,
    sum(stage_minutes.count) as count,
    sum(stage_minutes.error_count) as error_count,
    sum(stage_minutes.input_tokens) as input_tokens,
    sum(stage_minutes.output_tokens) as output_tokens,
    sum(stage_minutes.wall_sum_ns) as wall_sum_ns,
    max(stage_minutes.wall_max_ns) as wall_max_ns,
    sum(stage_minutes.busy_sum_ns) as busy_sum_ns,
    max(stage_minutes.busy_max_ns) as busy_max_ns,
    sum(stage_minutes.gpu_count) as gpu_count,
    sum(stage_minutes.gpu_sum_ns) as gpu_sum_ns,
    max(stage_minutes.gpu_max_ns) as gpu_max_ns,
    quantilesBFloat16WeightedMergeState(0.5, 0.9, 0.95, 0.99, 0.999)(stage_minutes.wall_q) as wall_q,
    quantilesBFloat16WeightedMergeState(0.5, 0.9, 0.95, 0.99, 0.999)(stage_minutes.busy_q) as busy_q,
    quantilesBFloat16WeightedMergeState(0.5, 0.9, 0.95, 0.99, 0.999)(stage_minutes.gpu_q) as gpu_q
from tailspan.stage_minutes
group by hour, service, model, stage
