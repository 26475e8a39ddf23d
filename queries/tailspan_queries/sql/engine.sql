-- Purpose: how busy each engine was, and how long it was idle between steps while requests were waiting or running
-- The time from the end of a step to the end of the next one is split in three: busy (the step; where steps overlap, as
-- with async scheduling, from the end of the one before), idle (before the step, while requests were there: the
-- scheduler, input and output processing, launches) and empty (no request). It counts where the step began.
-- These are times of the host's clock. Where a device was measured, `device_idle_ratio` says how long it computed
-- nothing while requests were there: idle time and launches within the steps. Steps count with their weights; empty
-- time is only known between steps that are both stored.
-- Parameters:
--   since         DateTime64(9, 'UTC')  begin of the window, inclusive
--   until         DateTime64(9, 'UTC')  end of the window, exclusive
--   service       String = ''           service.name; empty = all
--   model         String = ''           model that the engine runs; empty = all
--   instance      String = ''           service.instance.id; empty = all
--   by            String = 'engine'     engine: a line for each; minute: a line for each of its minutes
--   threshold_ns  Int64 = 10000000      ns, gaps from this length on are counted
--   limit         UInt32 = 10000        lines
-- Columns:
--   service            LowCardinality(String)  service.name
--   instance           LowCardinality(String)  service.instance.id
--   engine_id          LowCardinality(String)  engine instance
--   minute             Nullable(DateTime('UTC'))  minute in which the steps began; NULL by engine
--   model              String                  model that the engine runs
--   step_count         UInt64                  engine steps, weighted, rounded
--   kept_count         UInt64                  engine steps that are stored and stand for them
--   busy_ns            Float64                 ns, time in steps
--   idle_ns            Float64                 ns, time between steps while requests were waiting or running
--   empty_ns           Float64                 ns, time without requests
--   busy_ratio         Float64                 busy / (busy + idle + empty)
--   idle_ratio         Float64                 idle / (busy + idle + empty)
--   idle_p50_ns        Float64                 ns, percentile over steps of the idle time before a step, interpolated
--   idle_p99_ns        Float64                 ns
--   idle_max_ns        Int64                   ns
--   long_gaps          UInt64                  gaps of `threshold_ns` or more, weighted, rounded
--   long_gaps_ns       Float64                 ns, their sum
--   wall_p50_ns        Float64                 ns, percentile of a step's wall time, interpolated
--   wall_p99_ns        Float64                 ns
--   requests_mean      Float64                 requests in the batch, mean over steps
--   waiting_mean       Float64                 requests that waited for the scheduler, mean over steps
--   waiting_max        Int64                   requests that waited, largest
--   preempted          Int64                   evictions
--   device_ratio       Nullable(Float64)       device time / step time; NULL where none was measured
--   device_idle_ratio  Nullable(Float64)       1 - device time / (busy + idle); NULL where none was measured
--   device_launched_ratio  Nullable(Float64)  share of the device time in steps whose launch took 80 % of it or more
-- Tables: tailspan.steps
with
timed as (
    select
        *,
        toUnixTimestamp64Nano(start) as begin_ns,
        begin_ns + wall_ns as end_ns,
        lagInFrame(end_ns, 1, begin_ns) over engine_so_far as previous_end_ns,
        lagInFrame(step, 1, -1) over engine_so_far + 1 = step as follows,
        greatest(end_ns - greatest(begin_ns, previous_end_ns), 0) as busy_ns,
        if(follows, greatest(begin_ns - previous_end_ns - idle_ns, 0), 0) as empty_ns
    from tailspan.steps
    where
        -- A minute of grace, so that the first step of the window knows the one before it.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    window engine_so_far as (
        partition by service, instance, engine_id order by step asc rows between 1 preceding and current row
    )
)

select
    service,
    instance,
    engine_id,
    if({by:String} = 'minute', toStartOfMinute(toDateTime(start, 'UTC')), null) as minute,
    any(timed.model) as model,
    toUInt64(round(sum(weight))) as step_count,
    count() as kept_count,
    sum(timed.busy_ns * weight) as busy_ns,
    sum(timed.idle_ns * weight) as idle_ns,
    sum(timed.empty_ns * weight) as empty_ns,
    if(busy_ns > 0, busy_ns / (busy_ns + idle_ns + empty_ns), 0) as busy_ratio,
    if(idle_ns > 0, idle_ns / (busy_ns + idle_ns + empty_ns), 0) as idle_ratio,
    quantilesExactWeightedInterpolated(0.5, 0.99)(timed.idle_ns, whole_weight)[1] as idle_p50_ns,
    quantilesExactWeightedInterpolated(0.5, 0.99)(timed.idle_ns, whole_weight)[2] as idle_p99_ns,
    max(timed.idle_ns) as idle_max_ns,
    toUInt64(round(sumIf(weight, timed.idle_ns >= {threshold_ns:Int64}))) as long_gaps,
    sumIf(timed.idle_ns * weight, timed.idle_ns >= {threshold_ns:Int64}) as long_gaps_ns,
    quantilesExactWeightedInterpolated(0.5, 0.99)(timed.wall_ns, whole_weight)[1] as wall_p50_ns,
    quantilesExactWeightedInterpolated(0.5, 0.99)(timed.wall_ns, whole_weight)[2] as wall_p99_ns,
    avgWeighted(timed.requests, weight) as requests_mean,
    avgWeighted(timed.waiting, weight) as waiting_mean,
    max(timed.waiting) as waiting_max,
    toInt64(round(sum(timed.preempted * weight))) as preempted,
    if(
        countIf(timed.gpu_ns >= 0) > 0,
        sumIf(timed.gpu_ns * weight, timed.gpu_ns >= 0) / sumIf(timed.busy_ns * weight, timed.gpu_ns >= 0),
        null
    ) as device_ratio,
    if(
        countIf(timed.gpu_ns >= 0) > 0,
        1 - sumIf(timed.gpu_ns * weight, timed.gpu_ns >= 0)
        / sumIf((timed.busy_ns + timed.idle_ns) * weight, timed.gpu_ns >= 0),
        null
    ) as device_idle_ratio,
    if(
        countIf(timed.gpu_ns >= 0 and timed.launch_ns >= 0) > 0,
        sumIf(timed.gpu_ns * weight, timed.gpu_ns >= 0 and timed.launch_ns >= 0.8 * timed.gpu_ns)
        / nullIf(sumIf(timed.gpu_ns * weight, timed.gpu_ns >= 0 and timed.launch_ns >= 0), 0),
        null
    ) as device_launched_ratio
from timed
where start >= {since:DateTime64(9, 'UTC')}
group by service, instance, engine_id, minute
order by
    if({by:String} = 'minute', minute, null) asc,
    idle_ns desc,
    service asc,
    instance asc,
    engine_id asc
limit {limit:UInt32}
