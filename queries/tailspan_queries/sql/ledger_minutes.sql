-- Purpose: sums of every stage by block of time, from the per-minute rollup: what means and their intervals are made of
-- Reads one row a minute and stage instead of every span; sums are exact. The window must be whole minutes. A stage
-- counts in the minute in which it began itself, so its sums differ from query `ledger_blocks` by the requests
-- that were under way at the ends of a block. Negative times count as 0.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   blocks    UInt16 = 60           blocks that the window is cut into, of whole minutes
-- Columns:
--   stage        LowCardinality(String)  name of the stage, `unattributed` or `request`
--   block        UInt16                  number of the block from 0
--   wall_sum_ns  Float64                 ns, sum of wall time, weighted
--   requests     Float64                 requests that began in the block, weighted; 0 in rows other than `request`
--   kept_count   UInt64                  requests that are stored and stand for them; 0 in rows other than `request`
-- Tables: tailspan.stage_minutes
with
intDiv(
    dateDiff('minute', {since:DateTime64(9, 'UTC')}, {until:DateTime64(9, 'UTC')}) + {blocks:UInt16} - 1,
    greatest({blocks:UInt16}, 1)
) as block_minutes

select
    stage,
    toUInt16(
        intDiv(dateDiff('minute', {since:DateTime64(9, 'UTC')}, minute), greatest(block_minutes, 1))
    ) as block,
    sum(stage_minutes.wall_sum_ns) as wall_sum_ns,
    sumIf(stage_minutes.count, stage_minutes.stage = 'request') as requests,
    sumIf(stage_minutes.span_count, stage_minutes.stage = 'request') as kept_count
from tailspan.stage_minutes
where
    minute >= {since:DateTime64(9, 'UTC')}
    and minute < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or service = {service:String})
    and ({model:String} = '' or model = {model:String})
    and ({instance:String} = '' or instance = {instance:String})
group by stage, block
order by stage, block
