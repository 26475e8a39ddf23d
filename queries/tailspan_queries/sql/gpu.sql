-- Purpose: whether each engine's device computed, waited for its host between steps, or was held up by launches in them
-- The device's time is busy (first kernel of a step to its last) and idle (last kernel of a step to the first of the
-- next, while requests were there). A step is launch-bound if launching its forward pass took the host `launch_limit`
-- of the step's busy time or more: then the device never had much to do in advance and ran at the pace of the launches.
-- The rest of the busy time leaves room for sampling, which is busy time and not part of that launch.
-- Steps count with their weights. With device `cpu` all are times of the host's clock, and nothing is launched.
-- Parameters:
--   since         DateTime64(9, 'UTC')  begin of the window, inclusive; steps that began in it
--   until         DateTime64(9, 'UTC')  end of the window, exclusive
--   service       String = ''           service.name; empty = all
--   model         String = ''           model that the engine runs; empty = all
--   instance      String = ''           service.instance.id; empty = all
--   launch_limit  Float64 = 0.8         launch time / busy time from which on a step is launch-bound
--   limit         UInt32 = 10000        lines
-- Columns:
--   service             LowCardinality(String)  service.name
--   instance            LowCardinality(String)  service.instance.id
--   engine_id           LowCardinality(String)  engine instance
--   model               String                  model that the engine runs
--   device              String                  cuda, rocm, cpu (the host's clock); empty = no step was timed
--   step_count          UInt64                  engine steps, weighted, rounded
--   kept_count          UInt64                  engine steps that are stored and stand for them
--   untimed_count       UInt64                  of `step_count`, without device time
--   busy_ns             Float64                 ns, device time in steps
--   idle_ns             Float64                 ns, device time between steps while requests were there
--   idle_unknown_count  UInt64                  of the timed steps, those whose idle time is not known
--   busy_ratio          Nullable(Float64)       busy / (busy + idle); NULL without timed steps, as all below
--   idle_ratio          Nullable(Float64)       idle / (busy + idle)
--   launched_ratio      Nullable(Float64)       busy time of launch-bound steps / (busy + idle); NULL: no launch known
--   launch_bound_ratio  Nullable(Float64)       idle_ratio + launched_ratio: the device waited for its host
--   busy_p50_ns         Nullable(Float64)       ns, percentile over steps of the busy time, interpolated
--   busy_p99_ns         Nullable(Float64)       ns
--   idle_p50_ns         Nullable(Float64)       ns, percentile over steps of the known idle time before a step
--   idle_p99_ns         Nullable(Float64)       ns
--   launch_p50_ns       Nullable(Float64)       ns, percentile over steps of the known launch time, host
--   launch_p99_ns       Nullable(Float64)       ns
--   prefill_busy_ns     Float64                 ns, of the busy time, in steps that computed prompt tokens
--   decode_busy_ns      Float64                 ns, of the busy time, in the other steps
--   uncertainty_ns      Int64                   ns, largest doubt about when the device began; -1 = not known
-- Tables: tailspan.steps
with
timed as (
    select
        *,
        device_busy_ns >= 0 as has_busy,
        has_busy and device_idle_ns >= 0 as has_idle,
        has_busy and launch_ns >= 0 as has_launch
    from tailspan.steps
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
)

select
    service,
    instance,
    engine_id,
    toString(any(timed.model)) as model,
    anyIf(timed.device, has_busy) as device,
    toUInt64(round(sum(weight))) as step_count,
    count() as kept_count,
    toUInt64(round(sumIf(weight, not has_busy))) as untimed_count,
    sumIf(device_busy_ns * weight, has_busy) as busy_ns,
    sumIf(device_idle_ns * weight, has_idle) as idle_ns,
    toUInt64(round(sumIf(weight, has_busy and not has_idle))) as idle_unknown_count,
    busy_ns / nullIf(busy_ns + idle_ns, 0) as busy_ratio,
    idle_ns / nullIf(busy_ns + idle_ns, 0) as idle_ratio,
    if(
        countIf(has_launch) > 0,
        sumIf(device_busy_ns * weight, has_launch and launch_ns >= {launch_limit:Float64} * device_busy_ns)
        / nullIf(busy_ns + idle_ns, 0),
        null
    ) as launched_ratio,
    idle_ratio + launched_ratio as launch_bound_ratio,
    if(
        countIf(has_busy) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(device_busy_ns, whole_weight, has_busy)[1],
        null
    ) as busy_p50_ns,
    if(
        countIf(has_busy) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(device_busy_ns, whole_weight, has_busy)[2],
        null
    ) as busy_p99_ns,
    if(
        countIf(has_idle) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(device_idle_ns, whole_weight, has_idle)[1],
        null
    ) as idle_p50_ns,
    if(
        countIf(has_idle) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(device_idle_ns, whole_weight, has_idle)[2],
        null
    ) as idle_p99_ns,
    if(
        countIf(has_launch) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(launch_ns, whole_weight, has_launch)[1],
        null
    ) as launch_p50_ns,
    if(
        countIf(has_launch) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(launch_ns, whole_weight, has_launch)[2],
        null
    ) as launch_p99_ns,
    sumIf(device_busy_ns * weight, has_busy and prefill_tokens > 0) as prefill_busy_ns,
    busy_ns - prefill_busy_ns as decode_busy_ns,
    max(device_uncertainty_ns) as uncertainty_ns
from timed
group by service, instance, engine_id
order by busy_ns + idle_ns desc, service asc, instance asc, engine_id asc
limit {limit:UInt32}
