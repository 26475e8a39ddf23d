-- Purpose: what the mean, the tail and the variance of end-to-end time consist of, for each value of an attribute
-- The tail of a line's key is every request of that key whose end-to-end time reaches its quantile. The shares sum
-- to 1 over the rows of a key but `request`; `unattributed` is what no stage covers. Each request counts with its
-- weight. The critical path goes backwards from the end of a request: the stage that ended last, what ended before
-- that one began, and so on; a stage is clipped to the request and to the begin of what follows it on the path, and
-- what no stage covers is `unattributed`. Where stages partition the request, as those of tailspan do, the path is the
-- stages themselves; where stages overlap, shares of the path still sum to 1 with nothing counted twice.
-- Of a sample of the traces, `tail_share_margin_ratio` is half of a 95 % interval, by the jackknife over 16 groups of
-- traces (bits of the hash above those that choose the sample): each group is left out once, with the tail and where it
-- begins found anew without it. The margin is Student's t of 15 degrees (2.131) times the standard error, which is
-- sqrt(15 / 16 * sum of squared deviations of the 16 shares) * sqrt(1 - parts / 4096).
-- Source: clipping of children that overflow as in CRISP (Zhang et al., USENIX ATC 2022); share of the variance as in
-- Euler's allocation, cov(stage, e2e) / var(e2e); delete-a-group jackknife as in Kott (Journal of Official Statistics
-- 17, 2001).
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   quantile  Float64 = 0.99        quantile of end-to-end time at which the tail begins, 0 to 1
--   by        String = 'all'        model, instance, service, engine, priority, lora, outcome, any attribute; all = one
--   parts     UInt16 = 4096         read so many of the 4096 parts of all traces, sipHash64(trace_id) % 4096
--   spans     Identifier = 'spans'  spans, or spans_sample (the first 256 parts, in order) if `parts` is at most 256
--   limit     UInt32 = 20           keys, those with the most requests
-- Columns:
--   key                      String             value of the attribute; empty = the request has none
--   stage                    String             name of the stage, `unattributed` or `request`
--   requests                 UInt64             requests of the key, weighted, rounded
--   kept_requests            UInt64             requests that were read and stand for them
--   tail_requests            UInt64             requests of the key's tail, weighted, rounded
--   kept_tail_requests       UInt64             requests of the tail that were read and stand for them
--   threshold_ns             Float64            ns, end-to-end time at which the tail of the key begins
--   mean_ns                  Float64            ns, mean of the stage over requests
--   share_ratio              Float64            share of the end-to-end time of all requests of the key
--   tail_mean_ns             Float64            ns, mean of the stage over the tail
--   tail_share_ratio         Float64            share of the end-to-end time of the tail
--   variance_share_ratio     Nullable(Float64)  cov(stage, e2e) / var(e2e); NULL if all requests take equally long
--   path_ratio               Float64            share of the critical paths of all requests of the key
--   tail_path_ratio          Float64            share of the critical paths of the tail
--   tail_share_margin_ratio  Nullable(Float64)  sampling error of `tail_share_ratio` as said above; NULL if all is read
-- Tables: tailspan.engine_requests, tailspan.spans, tailspan.spans_sample, tailspan.stage_minutes
with
-- The groups of traces that are left out in turn; none where everything is read.
if({parts:UInt16} < 4096, range(16), []) as left_outs,

longest as (
    select toInt64(max(wall_max_ns)) as e2e_ns
    from tailspan.stage_minutes
    where
        stage = 'request'
        and minute >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and minute < {until:DateTime64(9, 'UTC')}
),

traced as (
    select
        anyIf(
            -- Of if(), unlike multiIf(), a branch that the parameter rules out is not read: maps are most of the bytes.
            if({by:String} = 'all', 'all',
            if({by:String} = 'model', toString(model),
            if({by:String} = 'instance', toString(instance),
            if({by:String} = 'service', toString(service),
            if({by:String} = 'engine', toString(engine_id),
            if({by:String} = 'priority', toString(attributes_int['tailspan.priority']),
            if({by:String} = 'lora', attributes_string['tailspan.lora'],
            if({by:String} = 'outcome', attributes_string['tailspan.outcome'],
            if(mapContains(attributes_string, {by:String}), attributes_string[{by:String}],
            if(mapContains(attributes_int, {by:String}), toString(attributes_int[{by:String}]),
            if(mapContains(attributes_bool, {by:String}), toString(attributes_bool[{by:String}]),
            resource_attributes[{by:String}]))))))))))),
            role = 'request'
        ) as key,
        intDiv(sipHash64(trace_id), 4096) % 16 as trace_group,
        anyIf(toUnixTimestamp64Nano(start), role = 'request') as request_begin_ns,
        anyIf(duration_ns, role = 'request') as e2e_ns,
        anyIf(weight, role = 'request') as request_weight,
        anyIf(whole_weight, role = 'request') as request_whole_weight,
        arrayMap(
            part -> (part.1, part.2 - request_begin_ns, part.3),
            groupArrayIf((toString(stage), toUnixTimestamp64Nano(start), duration_ns), role = 'stage')
        ) as timed_stages
    from tailspan.{spans:Identifier}
    where
        role in ('request', 'stage')
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
        and sipHash64(trace_id) % 4096 < {parts:UInt16}
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
        multiIf(
            {by:String} = 'all', 'all',
            {by:String} = 'model', toString(model),
            {by:String} = 'instance', toString(instance),
            {by:String} = 'service', toString(service),
            {by:String} = 'priority', '0',
            {by:String} = 'outcome', if(status_code = 2, 'error', 'ok'),
            ''
        ) as key,
        intDiv(sipHash64(trace_id), 4096) % 16 as trace_group,
        toInt64(0) as request_begin_ns,
        e2e_ns,
        toFloat64(1) as request_weight,
        toUInt64(1) as request_whole_weight,
        arrayMap(
            (stage, begin_ns, wall_ns) -> (toString(stage), begin_ns, wall_ns),
            stages.stage,
            stages.offset_ns,
            stages.wall_ns
        ) as timed_stages
    from tailspan.engine_requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and sipHash64(trace_id) % 4096 < {parts:UInt16}
),

ledgers as (
    select * from traced
    union all
    select * from engine_traced
),

weighed as (
    select
        *,
        sum(request_weight) over (partition by key) as key_weight,
        quantilesExactWeightedInterpolated({quantile:Float64}, greatest(2 * {quantile:Float64} - 1, 0))(
            e2e_ns, request_whole_weight
        )
            over (partition by key)
            as bounds_ns
    from ledgers
),

-- Each request beside its key's tail, with the critical path: stages by their end, the last one first.
placed as (
    select
        key,
        e2e_ns,
        request_weight as weight,
        timed_stages,
        bounds_ns[1] as threshold_ns,
        -- Without a group, the tail begins no lower than where it would if twice as large: what is below counts alike.
        quantileExactWeightedInterpolatedForEach({quantile:Float64})(
            arrayMap(left_out -> greatest(e2e_ns, toInt64(bounds_ns[2])), left_outs),
            arrayMap(left_out -> if(left_out = trace_group, 0, request_whole_weight), left_outs)
        )
            over (partition by key)
            as thresholds_without_ns,
        sum(e2e_ns * request_weight) over (partition by key) / sum(request_weight) over (partition by key)
            as e2e_mean_ns,
        e2e_ns >= threshold_ns as in_tail,
        arrayMap(
            (bound_ns, left_out) -> e2e_ns >= bound_ns and left_out != trace_group,
            if(e2e_ns >= bounds_ns[2], thresholds_without_ns, []),
            if(e2e_ns >= bounds_ns[2], left_outs, [])
        ) as in_tail_without,
        dense_rank() over (order by key_weight desc, key asc) as key_rank,
        arrayReverseSort(part -> (part.2 + part.3, -part.2), timed_stages) as by_end,
        arrayMap(
            (part, place) -> greatest(
                least(
                    part.2 + part.3,
                    e2e_ns,
                    arrayMin(later -> later.2, arrayPushFront(arraySlice(by_end, 1, place - 1), ('', e2e_ns, 0)))
                ) - greatest(part.2, 0),
                0
            ),
            by_end,
            arrayEnumerate(by_end)
        ) as path
    from weighed
),

entries as (
    select
        key,
        weight,
        threshold_ns,
        in_tail,
        in_tail_without,
        e2e_ns - e2e_mean_ns as e2e_offset_ns,
        entry.1 as stage,
        entry.2 as wall_ns,
        entry.3 as path_ns
    from placed
    array join
        arrayConcat(
            arrayMap((part, path_ns) -> (part.1, part.3, path_ns), by_end, path),
            [
                (
                    'unattributed',
                    e2e_ns - arraySum(part -> part.3, timed_stages),
                    e2e_ns - arraySum(path)
                ),
                ('request', e2e_ns, e2e_ns)
            ]
        ) as entry
    where key_rank <= {limit:UInt32}
),

totals as (
    select
        key,
        stage,
        sumIf(weight, stage = 'request') as request_weight,
        countIf(stage = 'request') as request_count,
        sumIf(weight, stage = 'request' and in_tail) as tail_weight,
        countIf(stage = 'request' and in_tail) as tail_count,
        any(threshold_ns) as threshold_ns,
        sum(wall_ns * weight) as wall_sum_ns,
        sumIf(wall_ns * weight, in_tail) as tail_sum_ns,
        sumForEach(arrayMap(is_in -> is_in * wall_ns * weight, in_tail_without)) as tail_sums_without_ns,
        sum(wall_ns * e2e_offset_ns * weight) as covariance,
        sum(path_ns * weight) as path_sum_ns,
        sumIf(path_ns * weight, in_tail) as tail_path_ns
    from entries
    group by key, stage
),

wholes as (
    select
        *,
        max(request_weight) over (partition by key) as key_weight,
        max(request_count) over (partition by key) as key_count,
        max(tail_weight) over (partition by key) as key_tail_weight,
        max(tail_count) over (partition by key) as key_tail_count,
        sumIf(wall_sum_ns, stage = 'request') over (partition by key) as e2e_sum_ns,
        sumIf(tail_sum_ns, stage = 'request') over (partition by key) as tail_e2e_sum_ns,
        anyIf(tail_sums_without_ns, stage = 'request') over (partition by key) as tail_e2e_sums_without_ns,
        sumIf(covariance, stage = 'request') over (partition by key) as variance
    from totals
)

select
    key,
    stage,
    toUInt64(round(key_weight * (4096 / {parts:UInt16}))) as requests,
    key_count as kept_requests,
    toUInt64(round(key_tail_weight * (4096 / {parts:UInt16}))) as tail_requests,
    key_tail_count as kept_tail_requests,
    threshold_ns,
    wall_sum_ns / key_weight as mean_ns,
    if(e2e_sum_ns > 0, wall_sum_ns / e2e_sum_ns, 0) as share_ratio,
    tail_sum_ns / key_tail_weight as tail_mean_ns,
    if(tail_e2e_sum_ns > 0, tail_sum_ns / tail_e2e_sum_ns, 0) as tail_share_ratio,
    covariance / nullIf(variance, 0) as variance_share_ratio,
    if(e2e_sum_ns > 0, path_sum_ns / e2e_sum_ns, 0) as path_ratio,
    if(tail_e2e_sum_ns > 0, tail_path_ns / tail_e2e_sum_ns, 0) as tail_path_ratio,
    if(
        arrayAll(whole_ns -> whole_ns > 0, tail_e2e_sums_without_ns) and notEmpty(tail_e2e_sums_without_ns),
        2.131 * sqrt(
            15 * (1 - {parts:UInt16} / 4096) * arrayReduce(
                'varPop',
                arrayMap(
                    (sum_ns, whole_ns) -> sum_ns / whole_ns,
                    -- A stage that no request near the tail has is without sums.
                    arrayResize(tail_sums_without_ns, length(tail_e2e_sums_without_ns)),
                    tail_e2e_sums_without_ns
                )
            )
        ),
        null
    ) as tail_share_margin_ratio
from wholes
order by
    key_weight desc,
    key asc,
    transform(
        stage,
        [
            'tls', 'receive', 'tokenize', 'dispatch', 'queue', 'queue+prefill', 'prefill', 'decode', 'preempted',
            'detokenize', 'respond', 'unattributed', 'request'
        ],
        [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 98, 99],
        90
    ) asc,
    stage asc
