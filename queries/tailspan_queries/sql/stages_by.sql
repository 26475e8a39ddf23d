-- Purpose: latency percentiles of every stage by group of requests and over time, from the raw spans
-- What query `stages` computes, for each group of requests and each bucket of time. Percentiles interpolate linearly
-- between neighbours, as numpy.percentile does, over one value a span, repeated as often as `whole_weight` says; counts
-- and sums use `weight`, scaled up by 4096 / `parts`.
-- Groups, by `by`: model, service, instance, engine, priority, lora, stream, attr (the value of `attribute`: of the
-- request span or, if it has none, of its resource); prompt, output: tokens, from the power of two that is the key to
-- the next (a prompt below 128 tokens and an output below 16 is group 1, none is group 0); batch: the same of the mean
-- number of requests in the engine's steps from the request's first to its last. The empty key is what is not known.
-- A bucket of time holds the requests that began in it and starts at a multiple of its length since 1970, in UTC: days
-- begin at midnight UTC whatever the clocks of a country do.
-- Parameters:
--   since         DateTime64(9, 'UTC')  begin of the window, inclusive
--   until         DateTime64(9, 'UTC')  end of the window, exclusive
--   service       String = ''           service.name; empty = all
--   model         String = ''           gen_ai.request.model; empty = all
--   instance      String = ''           service.instance.id; empty = all
--   by            String = 'model'      what a group is, as said above; empty = one group
--   attribute     String = ''           with `by` = attr: a key of the request span or, if it has none, of its resource
--   step_seconds  UInt32 = 0            length of a bucket of time; 0 = one bucket
--   parts         UInt16 = 4096         read so many of the 4096 parts of all traces, sipHash64(trace_id) % 4096
--   spans         Identifier = 'spans'  spans, or spans_sample, which holds the first 256 parts
--   group_limit   UInt32 = 20           groups with the most requests that are listed
--   stage         String = ''           only this stage and `request`; empty = all
-- Columns:
--   bucket        DateTime('UTC')    begin of the bucket of time, UTC; 1970 if there is only one
--   key           String             which group
--   group_rank    UInt64             place of the group by requests in the whole window, from 1
--   group_count   UInt64             groups that there are, listed or not
--   stage         String             name of the stage, `unattributed` or `request`
--   count         UInt64             spans (`unattributed` and `request`: requests), weighted, rounded
--   kept_count    UInt64             spans (requests) that were read and stand for them
--   error_count   UInt64             of `count`, with status error
--   share_ratio   Nullable(Float64)  stage's wall time / end-to-end time of the same requests; NULL if that is 0
--   wall_sum_ns   Int64              ns, sum of wall time
--   wall_p50_ns   Float64            ns, percentile of wall time
--   wall_p90_ns   Float64            ns
--   wall_p95_ns   Float64            ns
--   wall_p99_ns   Float64            ns
--   wall_p999_ns  Float64            ns
--   wall_max_ns   Int64              ns, largest wall time
--   busy_sum_ns   Int64              ns, sum of busy time; 0 where it is not measured
--   busy_p50_ns   Nullable(Float64)  ns, percentile of busy time; NULL where it is not measured
--   busy_p90_ns   Nullable(Float64)  ns
--   busy_p95_ns   Nullable(Float64)  ns
--   busy_p99_ns   Nullable(Float64)  ns
--   busy_p999_ns  Nullable(Float64)  ns
--   busy_max_ns   Nullable(Int64)    ns
--   gpu_count     UInt64             of `count`, with a GPU time
--   gpu_sum_ns    Int64              ns, sum of GPU time
--   gpu_p50_ns    Nullable(Float64)  ns, percentile of GPU time; NULL where none was measured
--   gpu_p90_ns    Nullable(Float64)  ns
--   gpu_p95_ns    Nullable(Float64)  ns
--   gpu_p99_ns    Nullable(Float64)  ns
--   gpu_p999_ns   Nullable(Float64)  ns
--   gpu_max_ns    Nullable(Int64)    ns
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
        anyIf(duration_ns, role = 'request') as e2e_ns,
        anyIf(status_code, role = 'request') = 2 as request_failed,
        anyIf(weight, role = 'request') as request_weight,
        anyIf(whole_weight, role = 'request') as request_whole_weight,
        groupArrayIf((toString(stage), duration_ns, busy_ns, gpu_ns, status_code = 2), role = 'stage') as parts,
        e2e_ns - arraySum(part -> part.2, parts) as unattributed_ns,
        arraySum(part -> part.3, parts) as busy_ns_total,
        if(arrayExists(part -> part.4 >= 0, parts), arraySum(part -> greatest(part.4, 0), parts), -1) as gpu_ns_total,
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
        and role in ('request', 'stage')
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
        e2e_ns,
        request_failed,
        request_weight,
        request_whole_weight,
        parts,
        unattributed_ns,
        busy_ns_total,
        gpu_ns_total
    from keyed
    union all
    select * from engine_traced
),

entries as (
    select
        toDateTime(
            intDiv(toUnixTimestamp(request_start), greatest({step_seconds:UInt32}, 1)) * {step_seconds:UInt32}, 'UTC'
        ) as bucket,
        key,
        request_weight * (4096 / {parts:UInt16}) as weight,
        request_whole_weight as whole_weight,
        entry.1 as stage,
        entry.2 as wall_ns,
        entry.3 as busy_ns,
        entry.4 as gpu_ns,
        entry.5 as failed
    from ledgers
    array join
        arrayConcat(
            parts,
            [
                ('unattributed', unattributed_ns, toInt64(0), toInt64(-1), toUInt8(0)),
                ('request', e2e_ns, busy_ns_total, gpu_ns_total, request_failed)
            ]
        ) as entry
    where {stage:String} = '' or entry.1 in ({stage:String}, 'request')
),

totals as (
    select
        bucket,
        key,
        stage,
        toUInt64(round(sum(weight))) as count,
        count() as kept_count,
        toUInt64(round(sumIf(weight, failed))) as error_count,
        toInt64(round(sum(wall_ns * weight))) as wall_sum_ns,
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
    group by bucket, key, stage
),

shared as (
    select
        *,
        sumIf(count, stage = 'request') over (partition by key) as key_requests,
        wall_sum_ns / nullIf(sumIf(wall_sum_ns, stage = 'request') over (partition by bucket, key), 0) as share_ratio
    from totals
),

ranked as (
    select
        *,
        dense_rank() over (order by key_requests desc, key asc) as group_rank
    from shared
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
    stage,
    count,
    kept_count,
    error_count,
    share_ratio,
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
from counted
where
    group_rank <= {group_limit:UInt32}
    and ({stage:String} = '' or stage in ({stage:String}, 'request'))
order by
    bucket,
    group_rank,
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
