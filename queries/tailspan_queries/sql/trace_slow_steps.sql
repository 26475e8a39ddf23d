-- Purpose: the slowest engine steps of the prefills and decodes of one trace, each with what explains most of it
-- A step is compared with the median steps without prefill of its engine from a minute before the trace to a minute
-- after it, by batch size (decode tokens: exact to 8, beyond within 9 %; a size without such a step takes the next
-- smaller one). What explains it is the largest of:
--   prefill     time beyond the median of its batch size, in a step that computed prompt tokens of other requests
--   own         the same for a prefill of the request itself, shared with other prompts by tokens
--   batch       the median of its batch size less the median of the batch size that the request mostly ran in
--   idle        idle time before the step beyond the engine's median
--   preemption  the same if requests were evicted before the step, and the step's time beyond the median
--   step        time beyond the median of its batch size, in a step without prefill
--   usual       none of them is more than 5 % of the step
--   unknown     the same, and the engine made no step without prefill to compare with
-- Cost is the time from the later of a step's begin and the end of the step before it to its end.
-- Parameters:
--   trace_id  String                32 hex digits
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; bounds the search, see query `trace_lookup`
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   limit     UInt32 = 5            steps to list
-- Columns:
--   span_id         String                  span of the stage, 16 hex digits
--   stage           LowCardinality(String)  prefill or decode
--   step            Int64                   number of the step within its engine
--   start           DateTime64(9, 'UTC')    begin of the step
--   cost_ns         Int64                   ns, time that the step took
--   idle_ns         Int64                   ns, idle time before the step
--   requests        Int64                   requests in the batch
--   prefill_tokens  Int64                   prompt tokens computed, for all requests
--   decode_tokens   Int64                   decode tokens computed, for all requests
--   waiting         Int64                   requests that waited for the scheduler
--   preempted       Int64                   evictions of any request
--   kv_usage_ratio  Float64                 share of the KV cache in use, 0 to 1
--   median_ns       Nullable(Float64)       ns, median of the steps without prefill of its batch size; NULL without any
--   why             String                  what explains most of it, see above
--   why_ns          Float64                 ns, how much that is
-- Tables: tailspan.spans, tailspan.steps
with
taken as (
    select
        span_id,
        stage,
        cityHash64(service, instance, engine_id) as engine,
        first_step,
        last_step,
        duration_ns,
        input_tokens - attributes_int['tailspan.prefill.cached_tokens'] as own_tokens
    from tailspan.spans
    where
        trace_id = toFixedString(unhex({trace_id:String}), 16)
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and role = 'stage'
        and engine_id != ''
        and last_step > 0
),

timed as (
    select
        *,
        cityHash64(service, instance, engine_id) as engine,
        toUnixTimestamp64Nano(start) as begin_ns,
        begin_ns + wall_ns as end_ns,
        lagInFrame(end_ns, 1, begin_ns) over (
            partition by engine order by step asc rows between 1 preceding and current row
        ) as previous_end_ns,
        greatest(end_ns - greatest(begin_ns, previous_end_ns), 0) as cost_ns,
        toInt32(round(4 * log2(greatest(decode_tokens, 1)))) as size
    from tailspan.steps
    where
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')}
        + toIntervalNanosecond((select max(taken.duration_ns) from taken)) + toIntervalMinute(1)
        and cityHash64(service, instance, engine_id) in (select taken.engine from taken)
),

medians as (
    select
        engine,
        size,
        quantileExactWeightedInterpolated(0.5)(cost_ns, whole_weight) as median_ns
    from timed
    where prefill_tokens = 0 and decode_tokens > 0
    group by engine, size
),

baselines as (
    select
        engine,
        arraySort(groupArray((size, median_ns))) as by_size
    from medians
    group by engine
),

usual as (
    select
        engine,
        quantileExactWeightedInterpolated(0.5)(idle_ns, whole_weight) as idle_ns
    from timed
    group by engine
),

-- The steps of each stage, with the stage's own share of their prompt tokens and its usual batch size.
members as (
    select
        timed.engine as engine,
        timed.step as step,
        timed.start as start,
        timed.cost_ns as cost_ns,
        timed.idle_ns as idle_ns,
        timed.requests as requests,
        timed.prefill_tokens as prefill_tokens,
        timed.decode_tokens as decode_tokens,
        timed.waiting as waiting,
        timed.preempted as preempted,
        timed.kv_usage_ratio as kv_usage_ratio,
        timed.size as size,
        taken.span_id as span_id,
        taken.stage as stage,
        if(
            taken.stage = 'prefill',
            least(taken.own_tokens / greatest(sum(timed.prefill_tokens) over of_stage, 1), 1),
            0
        ) as own_share,
        quantileExactWeightedInterpolated(0.5)(timed.size, timed.whole_weight) over of_stage as usual_size
    from timed
    inner join taken on timed.engine = taken.engine
    where timed.step between taken.first_step and taken.last_step
    window of_stage as (partition by taken.span_id)
),

explained as (
    select
        members.span_id as span_id,
        members.stage as stage,
        members.step as step,
        members.start as start,
        members.cost_ns as cost_ns,
        members.idle_ns as idle_ns,
        members.requests as requests,
        members.prefill_tokens as prefill_tokens,
        members.decode_tokens as decode_tokens,
        members.waiting as waiting,
        members.preempted as preempted,
        members.kv_usage_ratio as kv_usage_ratio,
        empty(baselines.by_size) as unknown,
        baselines.by_size[
            greatest(arrayLastIndex(pair -> pair.1 <= members.size, baselines.by_size), 1)
        ].2 as median_ns,
        baselines.by_size[
            greatest(arrayLastIndex(pair -> pair.1 <= members.usual_size, baselines.by_size), 1)
        ].2 as usual_ns,
        members.decode_tokens > 0 as decodes,
        members.prefill_tokens > 0 as mixed,
        if(unknown, 0, members.cost_ns - median_ns * decodes) as beyond_ns,
        members.idle_ns - usual.idle_ns as idle_beyond_ns,
        arrayReverseSort(
            factor -> factor.2,
            [
                (if(unknown, 'unknown', 'usual'), 0.05 * (members.cost_ns + members.idle_ns)),
                ('prefill', beyond_ns * mixed * (1 - members.own_share)),
                ('own', beyond_ns * mixed * members.own_share),
                ('batch', (median_ns - usual_ns) * decodes),
                ('idle', idle_beyond_ns * (members.preempted = 0)),
                ('preemption', (idle_beyond_ns + beyond_ns * (1 - mixed)) * (members.preempted > 0)),
                ('step', beyond_ns * (1 - mixed) * (members.preempted = 0))
            ]
        )[1] as reason
    from members
    left join baselines on members.engine = baselines.engine
    left join usual on members.engine = usual.engine
)

select
    lower(hex(explained.span_id)) as span_id,
    stage,
    step,
    start,
    cost_ns,
    idle_ns,
    requests,
    prefill_tokens,
    decode_tokens,
    waiting,
    preempted,
    kv_usage_ratio,
    if(unknown, null, explained.median_ns) as median_ns,
    reason.1 as why,
    if(why in ('usual', 'unknown'), 0, reason.2) as why_ns
from explained
order by cost_ns + idle_ns desc, step asc, span_id asc
limit {limit:UInt32}
