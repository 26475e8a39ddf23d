-- Purpose: exact latency percentiles and share of end-to-end of every stage, from the raw spans
-- A stage belongs to the request whose span is its parent; the request must have begun within the window and pass the
-- filters. Percentiles interpolate linearly between neighbours, as numpy.percentile does, over one value a span.
-- Every value counts with the weight of its request: percentiles are those of the values repeated as often as
-- `whole_weight` says, counts and sums use `weight`. Without sampling all weights are 1.
-- `request` is the end-to-end time; `unattributed` is, for each request, what its stages leave over, so that the shares
-- of all rows but `request` sum to 1. So do the shares of the variance, which say what makes requests differ; they may
-- be negative. Busy and GPU time of a request are the sums over its stages.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   stage                 String             name of the stage, `unattributed` or `request`
--   count                 UInt64             spans (`unattributed` and `request`: requests), weighted, rounded
--   kept_count            UInt64             spans (requests) that are stored and stand for them
--   error_count           UInt64             of `count`, with status error
--   share_ratio           Float64            sum of the stage's wall time / sum of end-to-end time
--   variance_share_ratio  Nullable(Float64)  cov(stage, e2e) / var(e2e); NULL if all requests take equally long
--   wall_sum_ns           Int64              ns, sum of wall time
--   wall_p50_ns           Float64            ns, percentile of wall time
--   wall_p90_ns           Float64            ns
--   wall_p95_ns           Float64            ns
--   wall_p99_ns           Float64            ns
--   wall_p999_ns          Float64            ns
--   wall_max_ns           Int64              ns, largest wall time
--   busy_sum_ns           Int64              ns, sum of busy time; 0 where it is not measured
--   busy_p50_ns           Nullable(Float64)  ns, percentile of busy time; NULL where it is not measured
--   busy_p90_ns           Nullable(Float64)  ns
--   busy_p95_ns           Nullable(Float64)  ns
--   busy_p99_ns           Nullable(Float64)  ns
--   busy_p999_ns          Nullable(Float64)  ns
--   busy_max_ns           Nullable(Int64)    ns
--   gpu_count             UInt64             of `count`, with a GPU time
--   gpu_sum_ns            Int64              ns, sum of GPU time
--   gpu_p50_ns            Nullable(Float64)  ns, percentile of GPU time; NULL where none was measured
--   gpu_p90_ns            Nullable(Float64)  ns
--   gpu_p95_ns            Nullable(Float64)  ns
--   gpu_p99_ns            Nullable(Float64)  ns
--   gpu_p999_ns           Nullable(Float64)  ns
--   gpu_max_ns            Nullable(Int64)    ns
-- Tables: tailspan.engine_requests, tailspan.requests, tailspan.spans
with
longest as (
    select max(e2e_ns) as e2e_ns
    from tailspan.requests
    where start >= {since:DateTime64(9, 'UTC')} and start < {until:DateTime64(9, 'UTC')}
),

traced as (
    select
        anyIf(duration_ns, role = 'request') as e2e_ns,
        anyIf(status_code, role = 'request') = 2 as request_failed,
        anyIf(weight, role = 'request') as request_weight,
        anyIf(whole_weight, role = 'request') as request_whole_weight,
        groupArrayIf((toString(stage), duration_ns, busy_ns, gpu_ns, status_code = 2), role = 'stage') as parts,
        e2e_ns - arraySum(part -> part.2, parts) as unattributed_ns,
        arraySum(part -> part.3, parts) as busy_ns_total,
        if(arrayExists(part -> part.4 >= 0, parts), arraySum(part -> greatest(part.4, 0), parts), -1) as gpu_ns_total
    from tailspan.spans
    where
        role in ('request', 'stage')
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
    group by trace_id, if(role = 'request', span_id, parent_span_id)
    having
        countIf(
            role = 'request'
            and start >= {since:DateTime64(9, 'UTC')}
            and start < {until:DateTime64(9, 'UTC')}
            and ({service:String} = '' or service = {service:String})
            and ({model:String} = '' or model = {model:String})
            and ({instance:String} = '' or instance = {instance:String})
        ) > 0
),

-- Requests that only the engine's own tracing reported.
engine_traced as (
    select
        e2e_ns,
        status_code = 2 as request_failed,
        toFloat64(1) as request_weight,
        toUInt64(1) as request_whole_weight,
        arrayMap(
            (stage, wall_ns) -> (toString(stage), wall_ns, toInt64(0), toInt64(-1), status_code = 2),
            stages.stage,
            stages.wall_ns
        ) as parts,
        unattributed_ns,
        toInt64(0) as busy_ns_total,
        toInt64(-1) as gpu_ns_total
    from tailspan.engine_requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

ledgers as (
    select * from traced
    union all
    select * from engine_traced
),

centered as (
    select
        *,
        e2e_ns - sum(e2e_ns * request_weight) over () / sum(request_weight) over () as e2e_offset_ns
    from ledgers
),

entries as (
    select
        e2e_offset_ns,
        request_weight as weight,
        request_whole_weight as whole_weight,
        entry.1 as stage,
        entry.2 as wall_ns,
        entry.3 as busy_ns,
        entry.4 as gpu_ns,
        entry.5 as failed
    from centered
    array join
        arrayConcat(
            parts,
            [
                ('unattributed', unattributed_ns, toInt64(0), toInt64(-1), toUInt8(0)),
                ('request', e2e_ns, busy_ns_total, gpu_ns_total, request_failed)
            ]
        ) as entry
),

totals as (
    select
        stage,
        toUInt64(round(sum(weight))) as count,
        count() as kept_count,
        toUInt64(round(sumIf(weight, failed))) as error_count,
        toInt64(round(sum(wall_ns * weight))) as wall_sum_ns,
        sum(wall_ns * e2e_offset_ns * weight) as covariance,
        quantilesExactWeightedInterpolated(0.5, 0.9, 0.95, 0.99, 0.999)(wall_ns, whole_weight) as wall_quantiles,
        max(wall_ns) as wall_max_ns,
        toInt64(round(sum(busy_ns * weight))) as busy_sum_ns,
        quantilesExactWeightedInterpolated(0.5, 0.9, 0.95, 0.99, 0.999)(busy_ns, whole_weight) as busy_quantiles,
        max(busy_ns) as busy_max_ns,
        toUInt64(round(sumIf(weight, gpu_ns >= 0))) as gpu_count,
        toInt64(round(sumIf(gpu_ns * weight, gpu_ns >= 0))) as gpu_sum_ns,
        quantilesExactWeightedInterpolatedIf(0.5, 0.9, 0.95, 0.99, 0.999)(gpu_ns, whole_weight, gpu_ns >= 0)
            as gpu_quantiles,
        max(gpu_ns) as gpu_max_ns
    from entries
    group by stage
)

select
    stage,
    count,
    kept_count,
    error_count,
    wall_sum_ns / sumIf(wall_sum_ns, stage = 'request') over () as share_ratio,
    covariance / nullIf(sumIf(covariance, stage = 'request') over (), 0) as variance_share_ratio,
    wall_sum_ns,
    wall_quantiles[1] as wall_p50_ns,
    wall_quantiles[2] as wall_p90_ns,
    wall_quantiles[3] as wall_p95_ns,
    wall_quantiles[4] as wall_p99_ns,
    wall_quantiles[5] as wall_p999_ns,
    wall_max_ns,
    busy_sum_ns,
    if(busy_sum_ns > 0, busy_quantiles[1], null) as busy_p50_ns,
    if(busy_sum_ns > 0, busy_quantiles[2], null) as busy_p90_ns,
    if(busy_sum_ns > 0, busy_quantiles[3], null) as busy_p95_ns,
    if(busy_sum_ns > 0, busy_quantiles[4], null) as busy_p99_ns,
    if(busy_sum_ns > 0, busy_quantiles[5], null) as busy_p999_ns,
    if(busy_sum_ns > 0, busy_max_ns, null) as busy_max_ns,
    gpu_count,
    gpu_sum_ns,
    if(gpu_count > 0, gpu_quantiles[1], null) as gpu_p50_ns,
    if(gpu_count > 0, gpu_quantiles[2], null) as gpu_p90_ns,
    if(gpu_count > 0, gpu_quantiles[3], null) as gpu_p95_ns,
    if(gpu_count > 0, gpu_quantiles[4], null) as gpu_p99_ns,
    if(gpu_count > 0, gpu_quantiles[5], null) as gpu_p999_ns,
    if(gpu_count > 0, gpu_max_ns, null) as gpu_max_ns
from totals
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
