-- Purpose: latency percentiles and share of end-to-end of every stage, from the rollups, within 0.8 %
-- Reads one row an hour and stage instead of every span, and one a minute for the parts of hours at both ends of the
-- window; with an instance all of it comes from the rows by minute. A percentile is within 0.8 % of the value at rank
-- ceil(q * n) of the sorted spans, as numpy.percentile has it with method="inverted_cdf", every span repeated as often
-- as `whole_weight` says; counts and sums use `weight`. Without sampling all weights are 1. The window must be whole
-- minutes. A stage counts in the minute in which it began itself, so its sums differ from query `stages` by the
-- requests that were under way at the ends of the window.
-- Negative times count as 0. Busy and GPU time of `request` are what the request span itself says.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   measures  String = 'all'        wall: leaves the percentiles of busy and GPU time out, at half the cost
-- Columns:
--   stage         LowCardinality(String)  name of the stage, `unattributed` or `request`
--   count         UInt64                  spans (`unattributed` and `request`: requests), weighted, rounded
--   kept_count    UInt64                  spans (requests) that are stored and stand for them
--   error_count   UInt64                  of `count`, with status error
--   share_ratio   Float64                 stage's wall time / wall time of all stages and `unattributed`
--   wall_sum_ns   UInt64                  ns, sum of wall time
--   wall_p50_ns   Float64                 ns, percentile of wall time
--   wall_p90_ns   Float64                 ns
--   wall_p95_ns   Float64                 ns
--   wall_p99_ns   Float64                 ns
--   wall_p999_ns  Float64                 ns
--   wall_max_ns   UInt64                  ns, largest wall time
--   busy_sum_ns   UInt64                  ns, sum of busy time; 0 where it is not measured
--   busy_p50_ns   Nullable(Float64)       ns, percentile of busy time; NULL where not measured or not asked for
--   busy_p90_ns   Nullable(Float64)       ns
--   busy_p95_ns   Nullable(Float64)       ns
--   busy_p99_ns   Nullable(Float64)       ns
--   busy_p999_ns  Nullable(Float64)       ns
--   busy_max_ns   Nullable(UInt64)        ns
--   gpu_count     UInt64                  of `count`, with a GPU time
--   gpu_sum_ns    UInt64                  ns, sum of GPU time
--   gpu_p50_ns    Nullable(Float64)       ns, percentile of GPU time; NULL where not measured or not asked for
--   gpu_p90_ns    Nullable(Float64)       ns
--   gpu_p95_ns    Nullable(Float64)       ns
--   gpu_p99_ns    Nullable(Float64)       ns
--   gpu_p999_ns   Nullable(Float64)       ns
--   gpu_max_ns    Nullable(UInt64)        ns
-- Tables: tailspan.stage_hours, tailspan.stage_minutes
with
-- The whole hours within the window come from stage_hours, the minutes before and after them from stage_minutes.
toInt64(3600000000000) as hour_ns,
intDiv(toUnixTimestamp64Nano({since:DateTime64(9, 'UTC')}) + hour_ns - 1, hour_ns) * hour_ns as hour_after_ns,
intDiv(toUnixTimestamp64Nano({until:DateTime64(9, 'UTC')}), hour_ns) * hour_ns as hour_before_ns,
{instance:String} = '' and hour_after_ns < hour_before_ns as has_hours,
if(has_hours, fromUnixTimestamp64Nano(hour_after_ns, 'UTC'), {until:DateTime64(9, 'UTC')}) as hours_begin,
if(has_hours, fromUnixTimestamp64Nano(hour_before_ns, 'UTC'), {until:DateTime64(9, 'UTC')}) as hours_end,

-- Hours of which stage_hours lacks requests: it knows nothing of what was stored before it was made, and of an insert
-- that is going on. They come from stage_minutes.
missing as (
    select
        toStartOfHour(minute) as hour,
        toInt64(span_count) as requests
    from tailspan.stage_minutes
    where stage = 'request' and minute >= hours_begin and minute < hours_end
    union all
    select
        hour,
        -toInt64(span_count) as requests
    from tailspan.stage_hours
    where stage = 'request' and hour >= hours_begin and hour < hours_end
),

lacking_hours as (
    select hour
    from missing
    group by hour
    having sum(requests) > 0
),

-- Named, as every mention of the subquery is planned anew.
(select groupArray(hour) from lacking_hours) as lacking, -- noqa: ST03

rows_of_time as (
    select
        stage,
        count,
        span_count,
        error_count,
        wall_sum_ns,
        wall_max_ns,
        busy_sum_ns,
        busy_max_ns,
        gpu_count,
        gpu_sum_ns,
        gpu_max_ns,
        wall_q,
        busy_q,
        gpu_q
    from tailspan.stage_hours
    where
        has_hours
        and hour >= hours_begin
        and hour < hours_end
        and not has(lacking, hour)
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
    union all
    select
        stage,
        count,
        span_count,
        error_count,
        wall_sum_ns,
        wall_max_ns,
        busy_sum_ns,
        busy_max_ns,
        gpu_count,
        gpu_sum_ns,
        gpu_max_ns,
        wall_q,
        busy_q,
        gpu_q
    from tailspan.stage_minutes
    where
        minute >= {since:DateTime64(9, 'UTC')}
        and minute < {until:DateTime64(9, 'UTC')}
        -- The comparisons without a column are known beforehand and spare the reading where no minutes are needed.
        and (
            ({since:DateTime64(9, 'UTC')} < hours_begin and minute < hours_begin)
            or (hours_end < {until:DateTime64(9, 'UTC')} and minute >= hours_end)
            or (notEmpty(lacking) and has(lacking, toStartOfHour(minute)))
        )
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

summed_up as (
    select
        stage,
        sum(rows_of_time.count) as count,
        sum(span_count) as kept_count,
        sum(rows_of_time.error_count) as error_count,
        sum(rows_of_time.wall_sum_ns) as wall_sum_ns,
        max(rows_of_time.wall_max_ns) as wall_max_ns,
        sum(rows_of_time.busy_sum_ns) as busy_sum_ns,
        max(rows_of_time.busy_max_ns) as busy_max_ns,
        sum(rows_of_time.gpu_count) as gpu_count,
        sum(rows_of_time.gpu_sum_ns) as gpu_sum_ns,
        max(rows_of_time.gpu_max_ns) as gpu_max_ns,
        quantilesBFloat16WeightedMerge(0.5, 0.9, 0.95, 0.99, 0.999)(wall_q) as wall_middles_ns,
        if(
            {measures:String} = 'all',
            quantilesBFloat16WeightedMerge(0.5, 0.9, 0.95, 0.99, 0.999)(busy_q),
            emptyArrayFloat64()
        ) as busy_middles_ns,
        if(
            {measures:String} = 'all',
            quantilesBFloat16WeightedMerge(0.5, 0.9, 0.95, 0.99, 0.999)(gpu_q),
            emptyArrayFloat64()
        ) as gpu_middles_ns
    from rows_of_time
    group by stage
),

-- A bucket reaches beyond the largest value in it. An element that an array of Nullable does not have is NULL.
limited as (
    select
        *,
        arrayMap(middle_ns -> least(round(middle_ns), toFloat64(wall_max_ns)), wall_middles_ns) as wall_ns,
        if(
            round(busy_sum_ns) > 0,
            arrayMap(
                middle_ns -> toNullable(least(round(middle_ns), toFloat64(busy_max_ns))), busy_middles_ns
            ),
            []
        ) as busy_ns,
        if(
            round(gpu_count) > 0,
            arrayMap(
                middle_ns -> toNullable(least(round(middle_ns), toFloat64(gpu_max_ns))), gpu_middles_ns
            ),
            []
        ) as gpu_ns
    from summed_up
)

select
    stage,
    toUInt64(round(count)) as count,
    kept_count,
    toUInt64(round(error_count)) as error_count,
    if(stage = 'request', 1, wall_sum_ns / sumIf(wall_sum_ns, stage != 'request') over ()) as share_ratio,
    toUInt64(round(wall_sum_ns)) as wall_sum_ns,
    wall_ns[1] as wall_p50_ns,
    wall_ns[2] as wall_p90_ns,
    wall_ns[3] as wall_p95_ns,
    wall_ns[4] as wall_p99_ns,
    wall_ns[5] as wall_p999_ns,
    toUInt64(wall_max_ns) as wall_max_ns,
    toUInt64(round(busy_sum_ns)) as busy_sum_ns,
    busy_ns[1] as busy_p50_ns,
    busy_ns[2] as busy_p90_ns,
    busy_ns[3] as busy_p95_ns,
    busy_ns[4] as busy_p99_ns,
    busy_ns[5] as busy_p999_ns,
    if(round(busy_sum_ns) > 0, toUInt64(busy_max_ns), null) as busy_max_ns,
    toUInt64(round(gpu_count)) as gpu_count,
    toUInt64(round(gpu_sum_ns)) as gpu_sum_ns,
    gpu_ns[1] as gpu_p50_ns,
    gpu_ns[2] as gpu_p90_ns,
    gpu_ns[3] as gpu_p95_ns,
    gpu_ns[4] as gpu_p99_ns,
    gpu_ns[5] as gpu_p999_ns,
    if(round(gpu_count) > 0, toUInt64(gpu_max_ns), null) as gpu_max_ns
from limited
order by
    transform(
        stage,
        [
            'tls', 'receive', 'tokenize', 'dispatch', 'queue', 'queue+prefill', 'prefill', 'decode', 'preempted',
            'detokenize', 'respond', 'unattributed', 'request'
        ],
        [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 98, 99],
        90
    ),
    stage
