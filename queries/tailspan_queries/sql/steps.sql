-- Purpose: engine steps by engine: batch size, tokens, idle gaps, GPU time
-- `tailspan engine` has the same for one model, with the gaps. Steps count with their weight, so that sampled data give
-- unbiased sums, means and percentiles; the largest values are those of the steps that are stored.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   service              LowCardinality(String)  service.name
--   instance             LowCardinality(String)  service.instance.id
--   engine_id            LowCardinality(String)  engine instance
--   step_count           UInt64                  engine steps, weighted, rounded
--   kept_count           UInt64                  engine steps that are stored and stand for them
--   wall_p50_ns          Float64                 ns, percentile of a step's wall time, interpolated
--   wall_p99_ns          Float64                 ns
--   requests_mean        Float64                 requests in the batch, mean over steps
--   requests_max         Int64                   requests in the largest batch
--   waiting_mean         Float64                 requests that waited for the scheduler, mean over steps
--   waiting_max          Int64                   requests that waited, largest
--   preempted            Int64                   evictions
--   prefill_tokens       Int64                   prompt tokens computed
--   decode_tokens        Int64                   decode tokens computed
--   wall_sum_ns          Float64                 ns, sum of the steps' wall time
--   decode_tokens_per_s  Float64                 decode tokens / s of step time
--   kv_usage_max_ratio   Float64                 largest share of the KV cache in use, 0 to 1
--   idle_ns              Int64                   ns, time between steps while requests were waiting or running
--   idle_ratio           Float64                 idle time before steps / (idle time + step time)
--   gpu_ratio            Nullable(Float64)       GPU time / step time; NULL where none was measured
-- Tables: tailspan.steps
select
    service,
    instance,
    engine_id,
    toUInt64(round(sum(weight))) as step_count,
    count() as kept_count,
    quantileExactWeightedInterpolated(0.5)(steps.wall_ns, whole_weight) as wall_p50_ns,
    quantileExactWeightedInterpolated(0.99)(steps.wall_ns, whole_weight) as wall_p99_ns,
    avgWeighted(steps.requests, weight) as requests_mean,
    max(steps.requests) as requests_max,
    avgWeighted(steps.waiting, weight) as waiting_mean,
    max(steps.waiting) as waiting_max,
    toInt64(round(sum(steps.preempted * weight))) as preempted,
    toInt64(round(sum(steps.prefill_tokens * weight))) as prefill_tokens,
    toInt64(round(sum(steps.decode_tokens * weight))) as decode_tokens,
    sum(steps.wall_ns * weight) as wall_sum_ns,
    if(wall_sum_ns > 0, decode_tokens / wall_sum_ns * 1e9, 0) as decode_tokens_per_s,
    max(steps.kv_usage_ratio) as kv_usage_max_ratio,
    toInt64(round(sum(steps.idle_ns * weight))) as idle_ns,
    if(idle_ns + wall_sum_ns > 0, idle_ns / (idle_ns + wall_sum_ns), 0) as idle_ratio,
    if(
        countIf(steps.gpu_ns >= 0) > 0,
        sumIf(steps.gpu_ns * weight, steps.gpu_ns >= 0) / sumIf(steps.wall_ns * weight, steps.gpu_ns >= 0),
        null
    ) as gpu_ratio
from tailspan.steps
where
    start >= {since:DateTime64(9, 'UTC')}
    and start < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or service = {service:String})
    and ({instance:String} = '' or instance = {instance:String})
group by service, instance, engine_id
order by step_count desc, engine_id asc
