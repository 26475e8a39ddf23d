-- Purpose: end-to-end latency minute by minute, with the share of the queue: did it get worse, and when
-- Reads the rollup; percentiles are within 0.8 %. Requests count with their weight, so that sampled data
-- give unbiased counts and percentiles.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   minute         DateTime('UTC')  begin of the minute
--   requests       UInt64           requests that began in it, weighted, rounded
--   kept_requests  UInt64           requests that are stored and stand for them
--   error_count    UInt64           of `requests`, with status error
--   e2e_p50_ns     Float64          ns, percentile of end-to-end time, within 0.8 %
--   e2e_p99_ns     Float64          ns
--   e2e_max_ns     UInt64           ns
--   queue_ratio    Float64          queue time that began in the minute / end-to-end time of its requests
-- Tables: tailspan.stage_minutes
with
minutes as (
    select
        minute,
        toUInt64(round(sumIf(stage_minutes.count, stage = 'request'))) as requests,
        sumIf(span_count, stage = 'request') as kept_requests,
        toUInt64(round(sumIf(stage_minutes.error_count, stage = 'request'))) as error_count,
        toUInt64(maxIf(stage_minutes.wall_max_ns, stage = 'request')) as e2e_max_ns,
        arrayMap(
            middle_ns -> least(round(middle_ns), toFloat64(e2e_max_ns)),
            quantilesBFloat16WeightedMergeIf(0.5, 0.9, 0.95, 0.99, 0.999)(wall_q, stage = 'request')
        ) as e2e_quantiles,
        sumIf(stage_minutes.wall_sum_ns, stage = 'queue') as queue_sum_ns,
        sumIf(stage_minutes.wall_sum_ns, stage = 'request') as e2e_sum_ns
    from tailspan.stage_minutes
    where
        minute >= {since:DateTime64(9, 'UTC')}
        and minute < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    group by minute
)

select
    minute,
    requests,
    kept_requests,
    error_count,
    e2e_quantiles[1] as e2e_p50_ns,
    e2e_quantiles[4] as e2e_p99_ns,
    e2e_max_ns,
    if(e2e_sum_ns > 0, queue_sum_ns / e2e_sum_ns, 0) as queue_ratio
from minutes
where requests > 0
order by minute
