-- Purpose: completed requests that met given limits of TTFT, ITL, TPOT and end-to-end time, by group and over time
-- TTFT and TPOT are as in query `ttft`, a request's own ITL within 1.1 %. Counts use `weight`, times 4096 / `parts`.
-- Good are the completed requests that met ALL limits given, as `vllm bench serve --goodput` counts them: at most the
-- limit; TPOT of fewer than two tokens counts as 0. The limit of ITL is for the p99 of a request's own gaps; fewer than
-- two tokens meet it. What is not known meets no limit. A TTFT after the end (clocks that were set) gives a TPOT of 0.
-- Groups and buckets of time are those of query `stages_by`.
-- Parameters:
--   since              DateTime64(9, 'UTC')   begin of the window, inclusive
--   until              DateTime64(9, 'UTC')   end of the window, exclusive
--   service            String = ''            service.name; empty = all
--   model              String = ''            gen_ai.request.model; empty = all
--   instance           String = ''            service.instance.id; empty = all
--   by                 String = 'model'       what a group is, as in query `stages_by`; empty = one group
--   attribute          String = ''            with `by` = attr: a key of the request span or else of its resource
--   step_seconds       UInt32 = 0             length of a bucket of time; 0 = one bucket
--   parts              UInt16 = 4096          read so many of the 4096 parts of all traces, sipHash64(trace_id) % 4096
--   spans              Identifier = 'spans'   spans, or spans_sample, which holds the first 256 parts
--   group_limit        UInt32 = 20            groups with the most requests that are listed
--   ttft_slo_ns        Int64 = 0              limit that a request's TTFT may reach; 0 = none
--   itl_slo_ns         Int64 = 0              limit that a request's ITL at its own p99 may reach; 0 = none
--   tpot_slo_ns        Int64 = 0              limit that a request's TPOT may reach; 0 = none
--   end_to_end_slo_ns  Int64 = 0              limit that a request's end-to-end time may reach; 0 = none
-- Columns:
--   bucket         DateTime('UTC')    begin of the bucket of time, UTC; 1970 if there is only one
--   key            String             which group
--   group_rank     UInt64             place of the group by requests in the whole window, from 1
--   group_count    UInt64             groups that there are, listed or not
--   requests       UInt64             requests that began, weighted, rounded
--   kept_requests  UInt64             requests that were read and stand for them
--   completed      UInt64             of `requests`, neither failed nor aborted
--   good           UInt64             of `completed`, met every limit given
--   ttft_met       UInt64             of `completed`, met the limit of TTFT, or none is given
--   itl_met        UInt64             the same of ITL: the gap at rank ceil(0.99 n) of the request's own gaps
--   tpot_met       UInt64             the same of TPOT; fewer than two tokens meet any limit
--   e2e_met        UInt64             the same of end-to-end time
--   ttft_alone     UInt64             of `completed`, missed the limit of TTFT and no other
--   itl_alone      UInt64             the same of ITL
--   tpot_alone     UInt64             the same of TPOT
--   e2e_alone      UInt64             the same of end-to-end time
-- Tables: tailspan.spans, tailspan.spans_sample, tailspan.engine_requests, tailspan.steps
with
longest as (
    select max(duration_ns) as e2e_ns
    from tailspan.{spans:Identifier}
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role = 'request'
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
),

-- Sums over the steps of an engine up to each of them: a range of steps is a difference of two.
step_sums as (
    select
        cityHash64(service, instance, engine_id) as engine,
        step,
        sum(weight) over up_to_here as step_count,
        sum(weight * requests) over up_to_here as batch_sum
    from tailspan.steps
    where
        {by:String} = 'batch'
        -- A minute of grace for clocks that were set meanwhile.
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
    window up_to_here as (partition by engine order by step asc)
),

traced as (
    select
        anyIf(spans.start, role = 'request') as request_start,
        anyIf(duration_ns, role = 'request') as sent_e2e_ns,
        anyIf(ttft_ns, role = 'request') as request_ttft_ns,
        anyIf(spans.output_tokens, role = 'request') as request_output_tokens,
        anyIf(status_code, role = 'request') as request_status,
        anyIf(attributes_string['tailspan.outcome'], role = 'request') as request_outcome,
        anyIf(weight, role = 'request') as request_weight,
        groupArrayIf(attributes_string['tailspan.itl.histogram'], role = 'stage' and stage = 'decode') as texts,
        arrayMap(
            pair -> splitByChar(':', pair),
            arrayFlatten(arrayMap(text -> splitByChar(' ', text), arrayFilter(text -> text != '', texts)))
        ) as pairs,
        arrayReduce(
            'sumMap',
            [arrayMap(pair -> toInt32OrZero(pair[1]), pairs)],
            [arrayMap(pair -> toUInt64OrZero(pair[2]), pairs)]
        ) as histogram,
        anyIf(
            concat(
                if({by:String} = 'model', toString(model), ''),
                if({by:String} = 'service', toString(service), ''),
                if({by:String} = 'instance', toString(instance), ''),
                if({by:String} = 'engine', toString(engine_id), ''),
                if({by:String} = 'priority', toString(attributes_int['tailspan.priority']), ''),
                if({by:String} = 'lora', attributes_string['tailspan.lora'], ''),
                if(
                    {by:String} = 'stream' and mapContains(attributes_bool, 'gen_ai.request.stream'),
                    if(attributes_bool['gen_ai.request.stream'], 'true', 'false'),
                    ''
                ),
                if(
                    {by:String} = 'prompt',
                    toString(if(input_tokens between 1 and 127, 1, roundToExp2(greatest(input_tokens, 0)))),
                    ''
                ),
                if(
                    {by:String} = 'output',
                    toString(if(output_tokens between 1 and 15, 1, roundToExp2(greatest(output_tokens, 0)))),
                    ''
                ),
                if(
                    {by:String} = 'attr',
                    coalesce(
                        nullIf(attributes_string[{attribute:String}], ''),
                        nullIf(cast(attributes_int, 'Map(String, String)')[{attribute:String}], ''),
                        nullIf(cast(attributes_double, 'Map(String, String)')[{attribute:String}], ''),
                        nullIf(cast(attributes_bool, 'Map(String, String)')[{attribute:String}], ''),
                        resource_attributes[{attribute:String}]
                    ),
                    ''
                )
            ),
            role = 'request'
        ) as plain_key,
        anyIf(cityHash64(service, instance, engine_id), role = 'stage' and last_step > 0) as engine,
        minIf(first_step, role = 'stage' and last_step > 0) as engine_first_step,
        maxIf(last_step, role = 'stage' and last_step > 0) as engine_last_step
    from tailspan.{spans:Identifier} as spans
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and (role = 'request' or (role = 'stage' and stage in ('prefill', 'decode')))
    where
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
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

keyed as (
    select
        traced.*,
        until_last.step_count - before_first.step_count as step_count,
        (until_last.batch_sum - before_first.batch_sum) / if(step_count > 0, step_count, 1) as batch_mean,
        if(
            {by:String} = 'batch',
            if(step_count > 0, toString(roundToExp2(greatest(toUInt64(batch_mean + 0.5), 1))), ''),
            traced.plain_key
        ) as key
    from traced
    asof left join step_sums as until_last
        on traced.engine = until_last.engine and traced.engine_last_step >= until_last.step
    asof left join step_sums as before_first
        on traced.engine = before_first.engine and traced.engine_first_step > before_first.step
),

-- Requests that only the engine's own tracing reported.
engine_traced as (
    select
        concat(
            if({by:String} = 'model', toString(model), ''),
            if({by:String} = 'service', toString(service), ''),
            if({by:String} = 'instance', toString(instance), ''),
            if(
                {by:String} = 'prompt',
                toString(if(input_tokens between 1 and 127, 1, roundToExp2(greatest(input_tokens, 0)))),
                ''
            ),
            if(
                {by:String} = 'output',
                toString(if(output_tokens between 1 and 15, 1, roundToExp2(greatest(output_tokens, 0)))),
                ''
            )
        ) as key,
        start as request_start,
        e2e_ns as sent_e2e_ns,
        ttft_ns as request_ttft_ns,
        output_tokens as request_output_tokens,
        status_code as request_status,
        '' as request_outcome,
        toFloat64(1) as request_weight,
        (emptyArrayInt32(), emptyArrayUInt64()) as histogram
    from tailspan.engine_requests
    where
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

ledgers as (
    select
        key,
        request_start,
        sent_e2e_ns,
        request_ttft_ns,
        request_output_tokens,
        request_status,
        request_outcome,
        request_weight,
        histogram
    from keyed
    union all
    select * from engine_traced
),

timed as (
    select
        toDateTime(
            intDiv(toUnixTimestamp(request_start), greatest({step_seconds:UInt32}, 1)) * {step_seconds:UInt32}, 'UTC'
        ) as bucket,
        key,
        request_weight * (4096 / {parts:UInt16}) as weight,
        request_output_tokens as output_tokens,
        greatest(sent_e2e_ns, 0) as e2e_ns,
        request_ttft_ns as ttft_ns,
        ttft_ns > 0 as has_ttft,
        has_ttft and output_tokens > 1 as has_tpot,
        greatest(sent_e2e_ns - ttft_ns, 0) / greatest(output_tokens - 1, 1) as tpot_ns,
        histogram.1 as gap_buckets,
        histogram.2 as gap_counts,
        arrayCumSum(gap_counts) as gap_ranks,
        exp2(
            (gap_buckets[arrayFirstIndex(rank -> rank >= ceil(0.99 * gap_ranks[-1]), gap_ranks)] + 0.5) / 32
        ) as itl_ns,
        request_outcome in ('client_disconnect', 'cancelled') as aborted,
        not aborted and (request_status = 2 or request_outcome not in ('', 'ok')) as failed,
        not aborted and not failed as done,
        {ttft_slo_ns:Int64} = 0 or (has_ttft and ttft_ns <= {ttft_slo_ns:Int64}) as meets_ttft,
        {itl_slo_ns:Int64} = 0
        or (notEmpty(gap_counts) and itl_ns <= {itl_slo_ns:Int64})
        or output_tokens < 2 as meets_itl,
        {tpot_slo_ns:Int64} = 0
        or (has_tpot and tpot_ns <= {tpot_slo_ns:Int64})
        or output_tokens < 2 as meets_tpot,
        {end_to_end_slo_ns:Int64} = 0 or e2e_ns <= {end_to_end_slo_ns:Int64} as meets_e2e,
        meets_ttft + meets_itl + meets_tpot + meets_e2e as met
    from ledgers
),

totals as (
    select
        bucket,
        key,
        toUInt64(round(sum(weight))) as requests,
        count() as kept_requests,
        toUInt64(round(sumIf(weight, done))) as completed,
        toUInt64(round(sumIf(weight, done and met = 4))) as good,
        toUInt64(round(sumIf(weight, done and meets_ttft))) as ttft_met,
        toUInt64(round(sumIf(weight, done and meets_itl))) as itl_met,
        toUInt64(round(sumIf(weight, done and meets_tpot))) as tpot_met,
        toUInt64(round(sumIf(weight, done and meets_e2e))) as e2e_met,
        toUInt64(round(sumIf(weight, done and met = 3 and not meets_ttft))) as ttft_alone,
        toUInt64(round(sumIf(weight, done and met = 3 and not meets_itl))) as itl_alone,
        toUInt64(round(sumIf(weight, done and met = 3 and not meets_tpot))) as tpot_alone,
        toUInt64(round(sumIf(weight, done and met = 3 and not meets_e2e))) as e2e_alone
    from timed
    group by bucket, key
),

summed_up as (
    select
        *,
        sum(requests) over (partition by key) as key_requests
    from totals
),

ranked as (
    select
        *,
        dense_rank() over (order by key_requests desc, key asc) as group_rank
    from summed_up
),

counted as (
    select
        *,
        max(group_rank) over () as group_count
    from ranked
)

select
    bucket,
    key,
    group_rank,
    group_count,
    requests,
    kept_requests,
    completed,
    good,
    ttft_met,
    itl_met,
    tpot_met,
    e2e_met,
    ttft_alone,
    itl_alone,
    tpot_alone,
    e2e_alone
from counted
where group_rank <= {group_limit:UInt32}
order by bucket, group_rank
