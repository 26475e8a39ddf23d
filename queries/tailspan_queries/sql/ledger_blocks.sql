-- Purpose: sums of every stage by block of time, from the raw spans: what means and their intervals are made of
-- The window is cut into equal blocks. A request belongs to the block in which it began, and its stages with it. The
-- mean of a stage is its sum over all blocks / the weight of all blocks of `request`; so a request without that stage
-- counts as 0. Every request counts with its weight. For windows of many requests see `ledger_minutes`.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   blocks    UInt16 = 60           blocks that the window is cut into
-- Columns:
--   stage        String   name of the stage, `unattributed` or `request`
--   block        UInt16   number of the block from 0
--   wall_sum_ns  Float64  ns, sum of wall time, weighted
--   requests     Float64  requests that began in the block, weighted; 0 in rows other than `request`
--   kept_count   UInt64   requests that are stored and stand for them; 0 in rows other than `request`
-- Tables: tailspan.requests, tailspan.stages
with
window_requests as (
    select
        trace_id,
        span_id as request_span_id,
        e2e_ns,
        weight as request_weight,
        toUInt16(
            least(
                intDiv(
                    dateDiff('ns', {since:DateTime64(9, 'UTC')}, requests.start),
                    greatest(
                        intDiv(
                            dateDiff('ns', {since:DateTime64(9, 'UTC')}, {until:DateTime64(9, 'UTC')})
                            + {blocks:UInt16} - 1,
                            greatest({blocks:UInt16}, 1)
                        ),
                        1
                    )
                ),
                greatest({blocks:UInt16}, 1) - 1
            )
        ) as block
    from tailspan.requests
    where
        requests.start >= {since:DateTime64(9, 'UTC')}
        and requests.start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

longest as (
    select toIntervalNanosecond(max(e2e_ns)) as duration
    from window_requests
),

stage_sums as (
    select
        toString(stages.stage) as stage,
        window_requests.block as block,
        sum(stages.wall_ns * window_requests.request_weight) as wall_sum_ns
    from tailspan.stages
    inner join window_requests
        on
            stages.trace_id = window_requests.trace_id
            and stages.request_span_id = window_requests.request_span_id
    where
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        stages.start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and stages.start
        < {until:DateTime64(9, 'UTC')} + (select longest.duration from longest)
    group by stage, block
),

request_sums as (
    select
        block,
        sum(e2e_ns * request_weight) as wall_sum_ns,
        sum(request_weight) as requests,
        count() as kept_count
    from window_requests
    group by block
),

covered as (
    select
        block,
        sum(wall_sum_ns) as covered_ns
    from stage_sums
    group by block
),

sums as (
    select
        stage,
        block,
        wall_sum_ns,
        0. as requests,
        toUInt64(0) as kept_count
    from stage_sums
    union all
    select
        'request' as stage,
        block,
        wall_sum_ns,
        requests,
        kept_count
    from request_sums
    union all
    select
        'unattributed' as stage,
        request_sums.block as block,
        request_sums.wall_sum_ns - coalesce(covered.covered_ns, 0) as wall_sum_ns,
        0. as requests,
        toUInt64(0) as kept_count
    from request_sums
    left join covered on request_sums.block = covered.block
)

select
    stage,
    block,
    toFloat64(wall_sum_ns) as wall_sum_ns,
    requests,
    kept_count
from sums
order by stage, block
