-- Purpose: TTFT, ITL, TPOT, end-to-end time, tokens and failures, by group and over time
-- TTFT and TPOT are as in query `ttft`, exact; percentiles interpolate linearly between neighbours, over one value a
-- request, repeated as often as `whole_weight` says. ITL is as in query `itl`:
-- the gaps of all requests, each within 1.1 %. Counts use `weight`, scaled up by 4096 / `parts`.
-- Groups and buckets of time are those of query `stages_by`.
-- Parameters:
--   since         DateTime64(9, 'UTC')  begin of the window, inclusive
--   until         DateTime64(9, 'UTC')  end of the window, exclusive
--   service       String = ''           service.name; empty = all
--   model         String = ''           gen_ai.request.model; empty = all
--   instance      String = ''           service.instance.id; empty = all
--   by            String = 'model'      what a group is, as in query `stages_by`; empty = one group
--   attribute     String = ''           with `by` = attr: a key of the request span or, if it has none, of its resource
--   step_seconds  UInt32 = 0            length of a bucket of time; 0 = one bucket
--   parts         UInt16 = 4096         read so many of the 4096 parts of all traces, sipHash64(trace_id) % 4096
--   spans         Identifier = 'spans'  spans, or spans_sample, which holds the first 256 parts
--   group_limit   UInt32 = 20           groups with the most requests that are listed
-- Columns:
--   bucket         DateTime('UTC')    begin of the bucket of time, UTC; 1970 if there is only one
--   key            String             which group
--   group_rank     UInt64             place of the group by requests in the whole window, from 1
--   group_count    UInt64             groups that there are, listed or not
--   requests       UInt64             requests that began, weighted, rounded
--   kept_requests  UInt64             requests that were read and stand for them
--   completed      UInt64             of `requests`, neither failed nor aborted
--   error_count    UInt64             of `requests`, failed: status error, outcome error, lost or stalled
--   aborted_count  UInt64             of `requests`, given up by the caller: client_disconnect or cancelled
--   input_tokens   Int64              prompt tokens of all requests
--   output_tokens  Int64              generated tokens of all requests
--   active_s       Float64            s, from the begin of the first request to the end of the last
--   ttft_count     UInt64             of `requests`, with a first token
--   ttft_mean_ns   Nullable(Float64)  ns, mean
--   ttft_p50_ns    Nullable(Float64)  ns, percentile
--   ttft_p90_ns    Nullable(Float64)  ns
--   ttft_p95_ns    Nullable(Float64)  ns
--   ttft_p99_ns    Nullable(Float64)  ns
--   ttft_p999_ns   Nullable(Float64)  ns
--   ttft_max_ns    Nullable(Float64)  ns, largest
--   itl_count      UInt64             gaps between tokens, weighted, rounded
--   itl_mean_ns    Nullable(Float64)  ns, mean, within 1.1 % as all of ITL
--   itl_p50_ns     Nullable(Float64)  ns, percentile
--   itl_p90_ns     Nullable(Float64)  ns
--   itl_p95_ns     Nullable(Float64)  ns
--   itl_p99_ns     Nullable(Float64)  ns
--   itl_p999_ns    Nullable(Float64)  ns
--   itl_max_ns     Nullable(Float64)  ns, largest
--   tpot_count     UInt64             of `requests`, with a first token and two tokens or more
--   tpot_mean_ns   Nullable(Float64)  ns a token, mean
--   tpot_p50_ns    Nullable(Float64)  ns a token, percentile
--   tpot_p90_ns    Nullable(Float64)  ns a token
--   tpot_p95_ns    Nullable(Float64)  ns a token
--   tpot_p99_ns    Nullable(Float64)  ns a token
--   tpot_p999_ns   Nullable(Float64)  ns a token
--   tpot_max_ns    Nullable(Float64)  ns a token, largest
--   e2e_mean_ns    Nullable(Float64)  ns, mean
--   e2e_p50_ns     Nullable(Float64)  ns, percentile
--   e2e_p90_ns     Nullable(Float64)  ns
--   e2e_p95_ns     Nullable(Float64)  ns
--   e2e_p99_ns     Nullable(Float64)  ns
--   e2e_p999_ns    Nullable(Float64)  ns
--   e2e_max_ns     Nullable(Float64)  ns, largest
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
        anyIf(spans.input_tokens, role = 'request') as request_input_tokens,
        anyIf(spans.output_tokens, role = 'request') as request_output_tokens,
        anyIf(status_code, role = 'request') as request_status,
        anyIf(attributes_string['tailspan.outcome'], role = 'request') as request_outcome,
        anyIf(weight, role = 'request') as request_weight,
        anyIf(whole_weight, role = 'request') as request_whole_weight,
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
        input_tokens as request_input_tokens,
        output_tokens as request_output_tokens,
        status_code as request_status,
        '' as request_outcome,
        toFloat64(1) as request_weight,
        toUInt64(1) as request_whole_weight,
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
        request_input_tokens,
        request_output_tokens,
        request_status,
        request_outcome,
        request_weight,
        request_whole_weight,
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
        toUnixTimestamp64Nano(request_start) as begin_ns,
        request_weight * (4096 / {parts:UInt16}) as weight,
        request_whole_weight as whole_weight,
        request_input_tokens as input_tokens,
        request_output_tokens as output_tokens,
        greatest(sent_e2e_ns, 0) as e2e_ns,
        request_ttft_ns as ttft_ns,
        ttft_ns > 0 as has_ttft,
        has_ttft and output_tokens > 1 as has_tpot,
        greatest(sent_e2e_ns - ttft_ns, 0) / greatest(output_tokens - 1, 1) as tpot_ns,
        histogram.1 as gap_buckets,
        histogram.2 as gap_counts,
        request_outcome in ('client_disconnect', 'cancelled') as aborted,
        not aborted and (request_status = 2 or request_outcome not in ('', 'ok')) as failed,
        not aborted and not failed as done
    from ledgers
),

totals as (
    select
        bucket,
        key,
        toUInt64(round(sum(weight))) as requests,
        count() as kept_requests,
        toUInt64(round(sumIf(weight, done))) as completed,
        toUInt64(round(sumIf(weight, failed))) as error_count,
        toUInt64(round(sumIf(weight, aborted))) as aborted_count,
        toInt64(round(sum(timed.input_tokens * weight))) as input_tokens,
        toInt64(round(sum(timed.output_tokens * weight))) as output_tokens,
        (max(begin_ns + e2e_ns) - min(begin_ns)) / 1e9 as active_s,
        toUInt64(round(sumIf(weight, has_ttft))) as ttft_count,
        sumIf(ttft_ns * weight, has_ttft) / nullIf(sumIf(weight, has_ttft), 0) as ttft_mean_ns,
        quantilesExactWeightedInterpolatedIf(0.5, 0.9, 0.95, 0.99, 0.999)(ttft_ns, whole_weight, has_ttft)
            as ttft_quantiles,
        maxIf(ttft_ns, has_ttft) as ttft_max,
        toUInt64(round(sumIf(weight, has_tpot))) as tpot_count,
        sumIf(tpot_ns * weight, has_tpot) / nullIf(sumIf(weight, has_tpot), 0) as tpot_mean_ns,
        quantilesExactWeightedInterpolatedIf(0.5, 0.9, 0.95, 0.99, 0.999)(tpot_ns, whole_weight, has_tpot)
            as tpot_quantiles,
        maxIf(tpot_ns, has_tpot) as tpot_max,
        sum(e2e_ns * weight) / sum(weight) as e2e_mean_ns,
        quantilesExactWeightedInterpolated(0.5, 0.9, 0.95, 0.99, 0.999)(e2e_ns, whole_weight) as e2e_quantiles,
        max(e2e_ns) as e2e_max,
        sumMap(gap_buckets, arrayMap(number -> number * weight, gap_counts)) as summed,
        arrayMap(bucket_of_gap -> exp2((bucket_of_gap + 0.5) / 32), summed.1) as gaps_ns,
        arrayCumSum(summed.2) as ranks,
        arraySum(summed.2) as gap_weight,
        arraySum(arrayMap((gap_ns, number) -> gap_ns * number, gaps_ns, summed.2)) / nullIf(gap_weight, 0)
            as itl_mean_ns,
        arrayMap(
            level -> gaps_ns[arrayFirstIndex(rank -> rank >= ceil(level * gap_weight), ranks)],
            [0.5, 0.9, 0.95, 0.99, 0.999]
        ) as itl_quantiles,
        gaps_ns[-1] as itl_max
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
    error_count,
    aborted_count,
    input_tokens,
    output_tokens,
    active_s,
    ttft_count,
    ttft_mean_ns,
    if(ttft_count > 0, ttft_quantiles[1], null) as ttft_p50_ns,
    if(ttft_count > 0, ttft_quantiles[2], null) as ttft_p90_ns,
    if(ttft_count > 0, ttft_quantiles[3], null) as ttft_p95_ns,
    if(ttft_count > 0, ttft_quantiles[4], null) as ttft_p99_ns,
    if(ttft_count > 0, ttft_quantiles[5], null) as ttft_p999_ns,
    if(ttft_count > 0, toFloat64(ttft_max), null) as ttft_max_ns,
    toUInt64(round(gap_weight)) as itl_count,
    itl_mean_ns,
    if(gap_weight > 0, itl_quantiles[1], null) as itl_p50_ns,
    if(gap_weight > 0, itl_quantiles[2], null) as itl_p90_ns,
    if(gap_weight > 0, itl_quantiles[3], null) as itl_p95_ns,
    if(gap_weight > 0, itl_quantiles[4], null) as itl_p99_ns,
    if(gap_weight > 0, itl_quantiles[5], null) as itl_p999_ns,
    if(gap_weight > 0, toFloat64(itl_max), null) as itl_max_ns,
    tpot_count,
    tpot_mean_ns,
    if(tpot_count > 0, tpot_quantiles[1], null) as tpot_p50_ns,
    if(tpot_count > 0, tpot_quantiles[2], null) as tpot_p90_ns,
    if(tpot_count > 0, tpot_quantiles[3], null) as tpot_p95_ns,
    if(tpot_count > 0, tpot_quantiles[4], null) as tpot_p99_ns,
    if(tpot_count > 0, tpot_quantiles[5], null) as tpot_p999_ns,
    if(tpot_count > 0, toFloat64(tpot_max), null) as tpot_max_ns,
    toNullable(e2e_mean_ns) as e2e_mean_ns,
    toNullable(e2e_quantiles[1]) as e2e_p50_ns,
    toNullable(e2e_quantiles[2]) as e2e_p90_ns,
    toNullable(e2e_quantiles[3]) as e2e_p95_ns,
    toNullable(e2e_quantiles[4]) as e2e_p99_ns,
    toNullable(e2e_quantiles[5]) as e2e_p999_ns,
    toNullable(toFloat64(e2e_max)) as e2e_max_ns
from counted
where group_rank <= {group_limit:UInt32}
order by bucket, group_rank
