-- Purpose: the engine steps in which the stages of one trace took part, summed up for each stage span
-- Steps count with their weight, so that sampled ones give unbiased sums.
-- Parameters:
--   trace_id  String                32 hex digits
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; bounds the search, see query `trace_lookup`
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
-- Columns:
--   span_id         String   span of the stage, 16 hex digits
--   steps           UInt64   engine steps from its first to its last
--   requests_mean   Float64  requests in the batch, mean over these steps
--   prefill_tokens  Int64    prompt tokens computed in these steps, for all requests
--   decode_tokens   Int64    decode tokens computed in these steps, for all requests
--   wall_ns         Int64    ns, sum of the steps' wall time
--   idle_ns         Int64    ns, sum of the idle time before the steps
-- Tables: tailspan.spans, tailspan.steps
with
taken as (
    select
        span_id,
        service,
        instance,
        engine_id,
        first_step,
        last_step
    from tailspan.spans
    where
        trace_id = toFixedString(unhex({trace_id:String}), 16)
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and role = 'stage'
        and engine_id != ''
        and last_step > 0
)

select
    lower(hex(taken.span_id)) as span_id,
    toUInt64(round(sum(steps.weight))) as steps,
    avgWeighted(steps.requests, steps.weight) as requests_mean,
    toInt64(round(sum(steps.prefill_tokens * steps.weight))) as prefill_tokens,
    toInt64(round(sum(steps.decode_tokens * steps.weight))) as decode_tokens,
    toInt64(round(sum(steps.wall_ns * steps.weight))) as wall_ns,
    toInt64(round(sum(steps.idle_ns * steps.weight))) as idle_ns
from tailspan.steps
inner join taken
    on
        steps.service = taken.service
        and steps.instance = taken.instance
        and steps.engine_id = taken.engine_id
where
    steps.start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
    and steps.start < {until:DateTime64(9, 'UTC')} + toIntervalMinute(1)
    and steps.engine_id in (select engines.engine_id from taken as engines)
    and steps.step between taken.first_step and taken.last_step
group by taken.span_id
order by span_id
