-- Purpose: what the slowest requests spend their time on
-- The tail is every request whose end-to-end time reaches the quantile asked for, so it holds one at least. The shares
-- are E[stage | tail] / E[e2e | tail]: unlike the percentiles of the stages they sum to 1. Compare them with
-- `share_ratio` of query `stages`. Only stages of the tail are added up, so that long windows stay cheap. Every request
-- counts with its weight, so that sampled data give unbiased shares.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   quantile  Float64 = 0.99        quantile of end-to-end time at which the tail begins, 0 to 1
-- Columns:
--   stage             String   name of the stage, `unattributed` or `request`
--   tail_requests     UInt64   requests in the tail, weighted, rounded
--   kept_requests     UInt64   requests in the tail that are stored and stand for them
--   threshold_ns      Float64  ns, end-to-end time at which the tail begins
--   tail_mean_ns      Float64  ns, mean of the stage over the tail
--   tail_share_ratio  Float64  share of the end-to-end time of the tail
-- Tables: tailspan.requests, tailspan.stages
with
window_requests as (
    select
        trace_id,
        span_id,
        e2e_ns,
        weight,
        whole_weight
    from tailspan.requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

bounds as (
    select
        quantileExactWeightedInterpolated({quantile:Float64})(e2e_ns, whole_weight) as threshold_ns,
        max(e2e_ns) as longest_ns
    from window_requests
),

tail as (
    select
        trace_id,
        span_id,
        e2e_ns,
        weight
    from window_requests
    where e2e_ns >= (select threshold_ns from bounds)
),

sums as (
    select
        toString(stage) as stage,
        sum(wall_ns * weight) as wall_sum_ns,
        0. as requests,
        toUInt64(0) as kept
    from tailspan.stages
    where
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select longest_ns from bounds))
        and (trace_id, request_span_id) in (
            select
                trace_id,
                span_id
            from tail
        )
    group by stage
    union all
    select
        'request' as stage,
        sum(e2e_ns * weight) as wall_sum_ns,
        sum(weight) as requests,
        count() as kept
    from tail
),

totals as (
    select
        stage,
        wall_sum_ns,
        sum(requests) over () as tail_weight,
        sum(kept) over () as kept_requests,
        sumIf(wall_sum_ns, stage = 'request') over () as e2e_sum_ns,
        sumIf(wall_sum_ns, stage != 'request') over () as stages_sum_ns
    from sums
),

shares as (
    select
        tail_weight,
        kept_requests,
        e2e_sum_ns,
        entry.1 as stage,
        entry.2 as wall_sum_ns
    from totals
    array join
        if(
            totals.stage = 'request',
            [('request', e2e_sum_ns), ('unattributed', e2e_sum_ns - stages_sum_ns)],
            [(totals.stage, totals.wall_sum_ns)]
        ) as entry
    where kept_requests > 0
)

select
    stage,
    toUInt64(round(tail_weight)) as tail_requests,
    kept_requests,
    assumeNotNull((select threshold_ns from bounds)) as threshold_ns,
    wall_sum_ns / tail_weight as tail_mean_ns,
    wall_sum_ns / e2e_sum_ns as tail_share_ratio
from shares
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
