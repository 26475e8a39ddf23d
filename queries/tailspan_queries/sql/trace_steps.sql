-- Purpose: the engine steps in which the stages of one trace took part, summed up for each stage span
-- Steps count with their weight, so that sampled ones give unbiased sums.
-- Parameters:
--   trace_id  String                32 hex digits
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; bounds the search, see query `trace_lookup`
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
-- Columns:
--   span_id             String   span of the stage, 16 hex digits
--   steps               UInt64   engine steps from its first to its last
--   requests_mean       Float64  requests in the batch, mean over these steps
--   requests_max        Int64    requests in the largest batch
--   mixed_steps         UInt64   steps that computed prompt tokens
--   prefill_tokens      Int64    prompt tokens computed in these steps, for all requests
--   others_tokens       Int64    of these, tokens of other requests
--   decode_tokens       Int64    decode tokens computed in these steps, for all requests
--   waiting_mean        Float64  requests that waited for the scheduler, mean over these steps
--   waiting_max         Int64    requests that waited, largest
--   kv_usage_max_ratio  Float64  largest share of the KV cache in use; 0 also where it is not told
--   preempted           Int64    evictions of any request
--   wall_ns             Int64    ns, sum of the steps' wall time
--   idle_ns             Int64    ns, sum of the idle time before the steps
-- Tables: tailspan.spans, tailspan.steps
with
taken as (
    select
        span_id,
        service,
        instance,
        engine_id,
        first_step,
        last_step,
        duration_ns,
        if(
            stage = 'prefill', input_tokens - attributes_int['tailspan.prefill.cached_tokens'], 0
        ) as own_tokens
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
    max(steps.requests) as requests_max,
    toUInt64(round(sumIf(steps.weight, steps.prefill_tokens > 0))) as mixed_steps,
    toInt64(round(sum(steps.prefill_tokens * steps.weight))) as prefill_tokens,
    greatest(prefill_tokens - any(taken.own_tokens), 0) as others_tokens,
    toInt64(round(sum(steps.decode_tokens * steps.weight))) as decode_tokens,
    avgWeighted(steps.waiting, steps.weight) as waiting_mean,
    max(steps.waiting) as waiting_max,
    max(steps.kv_usage_ratio) as kv_usage_max_ratio,
    toInt64(round(sum(steps.preempted * steps.weight))) as preempted,
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
    and steps.start < {until:DateTime64(9, 'UTC')}
    + toIntervalNanosecond((select max(stage.duration_ns) from taken as stage)) + toIntervalMinute(1)
    and steps.engine_id in (select engines.engine_id from taken as engines)
    and steps.step between taken.first_step and taken.last_step
group by taken.span_id
order by span_id
