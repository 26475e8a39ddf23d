-- Purpose: engine steps by engine: batch size, tokens, idle gaps, GPU time
-- Step spans carry no model, so there is no filter for it.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   service              LowCardinality(String)  service.name
--   instance             LowCardinality(String)  service.instance.id
--   engine_id            LowCardinality(String)  engine instance
--   step_count           UInt64                  engine steps
--   wall_p50_ns          Float64                 ns, percentile of a step's wall time, interpolated
--   wall_p99_ns          Float64                 ns
--   requests_mean        Float64                 requests in the batch, mean over steps
--   requests_max         Int64                   requests in the largest batch
--   waiting_mean         Float64                 requests that waited for the scheduler, mean over steps
--   waiting_max          Int64                   requests that waited, largest
--   preempted            Int64                   evictions
--   prefill_tokens       Int64                   prompt tokens computed
--   decode_tokens        Int64                   decode tokens computed
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
    count() as step_count,
    quantileExactInclusive(0.5)(steps.wall_ns) as wall_p50_ns,
    quantileExactInclusive(0.99)(steps.wall_ns) as wall_p99_ns,
    avg(steps.requests) as requests_mean,
    max(steps.requests) as requests_max,
    avg(steps.waiting) as waiting_mean,
    max(steps.waiting) as waiting_max,
    sum(steps.preempted) as preempted,
    sum(steps.prefill_tokens) as prefill_tokens,
    sum(steps.decode_tokens) as decode_tokens,
    if(sum(steps.wall_ns) > 0, decode_tokens / sum(steps.wall_ns) * 1e9, 0) as decode_tokens_per_s,
    max(steps.kv_usage_ratio) as kv_usage_max_ratio,
    sum(steps.idle_ns) as idle_ns,
    if(idle_ns + sum(steps.wall_ns) > 0, idle_ns / (idle_ns + sum(steps.wall_ns)), 0) as idle_ratio,
    if(
        countIf(steps.gpu_ns >= 0) > 0,
        sumIf(steps.gpu_ns, steps.gpu_ns >= 0) / sumIf(steps.wall_ns, steps.gpu_ns >= 0),
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
