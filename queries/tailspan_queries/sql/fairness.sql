-- Purpose: who waits in the queue, by priority or another attribute: percentiles, long waits, and two halves compared
-- The wait of a request is the sum of its stages `queue`; requests without one are left out. Percentiles interpolate
-- linearly and count every request with its weight. The row `everyone` is that of all requests. The later period
-- is the window without the baseline, the earlier one the baseline, which may lie within the window (its first half) or
-- outside. Each period of a key is cut into 8 blocks with as many of its requests each, in the order of time: whether
-- its long waits rose beyond chance is told by how much the P99 differs from block to block.
-- Parameters:
--   since           DateTime64(9, 'UTC')    begin of the window, inclusive
--   until           DateTime64(9, 'UTC')    end of the window, exclusive
--   baseline_since  DateTime64(9, 'UTC')    begin of the earlier period, inclusive
--   baseline_until  DateTime64(9, 'UTC')    end of the earlier period, exclusive
--   service         String = ''             service.name; empty = all
--   model           String = ''             gen_ai.request.model; empty = all
--   instance        String = ''             service.instance.id; empty = all
--   by              String = 'priority'     priority, model, instance, service, engine, lora, outcome, or any attribute
--   times           Float64 = 10            a wait is long if it is so many times the median wait of all requests
--   parts           UInt16 = 4096           traces to read: so many of the 4096 parts that a hash divides them into
--   spans           Identifier = 'spans'    spans, or spans_sample where it holds these parts of both periods
--   limit           UInt32 = 20             keys, those with the most requests
-- Columns:
--   everyone          UInt8              1: all requests, 0: those of one key
--   key               String             value of the attribute; empty = the request has none
--   requests          UInt64             requests of the window that queued, weighted, rounded
--   kept_requests     UInt64             requests that were read and stand for them
--   wait_mean_ns      Float64            ns, mean wait
--   wait_p50_ns       Float64            ns, percentile of the wait
--   wait_p90_ns       Float64            ns
--   wait_p95_ns       Float64            ns
--   wait_p99_ns       Float64            ns
--   wait_max_ns       Int64              ns, longest wait
--   long_wait_ns      Float64            ns, from which wait on it is long; the same in all rows
--   long_ratio        Float64            share of requests with a long wait
--   longest_trace_id  String             trace of the longest wait
--   before_requests   UInt64             requests read in the earlier period
--   before_p50_ns     Nullable(Float64)  ns, percentile in the earlier period; NULL without requests
--   before_p99_ns     Nullable(Float64)  ns
--   after_requests    UInt64             requests read in the later period
--   after_p50_ns      Nullable(Float64)  ns, percentile in the later period; NULL without requests
--   after_p99_ns      Nullable(Float64)  ns
--   before_blocks_ns  Array(Float64)     ns, P99 of the wait in each block of the earlier period that has requests
--   after_blocks_ns   Array(Float64)     ns, the same of the later period
-- Tables: tailspan.engine_requests, tailspan.spans, tailspan.spans_sample
with
traced as (
    select
        trace_id,
        span_id,
        start,
        weight,
        whole_weight,
        -- if() with a parameter is decided before anything is read, so that only the maps are read that are needed.
        if(
            {by:String} = 'priority',
            toString(attributes_int['tailspan.priority']),
            if(
                {by:String} in ('model', 'instance', 'service', 'engine'),
                multiIf(
                    {by:String} = 'model', toString(model),
                    {by:String} = 'instance', toString(instance),
                    {by:String} = 'service', toString(service),
                    toString(engine_id)
                ),
                if(
                    {by:String} in ('lora', 'outcome'),
                    if(
                        {by:String} = 'lora',
                        attributes_string['tailspan.lora'],
                        attributes_string['tailspan.outcome']
                    ),
                    multiIf(
                        mapContains(attributes_string, {by:String}), attributes_string[{by:String}],
                        mapContains(attributes_int, {by:String}), toString(attributes_int[{by:String}]),
                        mapContains(attributes_bool, {by:String}), toString(attributes_bool[{by:String}]),
                        resource_attributes[{by:String}]
                    )
                )
            )
        ) as key
    from tailspan.{spans:Identifier}
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role = 'request'
        and (
            (start >= {since:DateTime64(9, 'UTC')} and start < {until:DateTime64(9, 'UTC')})
            or (start >= {baseline_since:DateTime64(9, 'UTC')} and start < {baseline_until:DateTime64(9, 'UTC')})
        )
    where
        ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

waits as (
    select
        trace_id,
        parent_span_id as request_span_id,
        sum(duration_ns) as wait_ns
    from tailspan.{spans:Identifier}
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role = 'stage'
        and stage = 'queue'
        -- The stages before the queue take less than an hour; a minute of grace for clocks that were set meanwhile.
        and (
            (
                start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
                and start < {until:DateTime64(9, 'UTC')} + toIntervalHour(1)
            ) or (
                start >= {baseline_since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
                and start < {baseline_until:DateTime64(9, 'UTC')} + toIntervalHour(1)
            )
        )
    group by trace_id, request_span_id
),

-- Requests that only the engine's own tracing reported.
engine_traced as (
    select
        trace_id,
        start,
        toFloat64(1) as weight,
        toUInt64(1) as whole_weight,
        multiIf(
            {by:String} = 'priority', '0',
            {by:String} = 'model', toString(model),
            {by:String} = 'instance', toString(instance),
            {by:String} = 'service', toString(service),
            {by:String} = 'outcome', if(status_code = 2, 'error', 'ok'),
            ''
        ) as key,
        arraySum((name, wall_ns) -> if(name = 'queue', wall_ns, 0), stages.stage, stages.wall_ns) as wait_ns
    from tailspan.engine_requests
    where
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and (
            (start >= {since:DateTime64(9, 'UTC')} and start < {until:DateTime64(9, 'UTC')})
            or (start >= {baseline_since:DateTime64(9, 'UTC')} and start < {baseline_until:DateTime64(9, 'UTC')})
        )
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and has(stages.stage, 'queue')
),

queued as (
    select
        traced.trace_id as trace_id,
        traced.start as start,
        traced.weight as weight,
        traced.whole_weight as whole_weight,
        traced.key as key,
        waits.wait_ns as wait_ns
    from traced
    inner join waits on traced.trace_id = waits.trace_id and traced.span_id = waits.request_span_id
    union all
    select
        trace_id,
        start,
        weight,
        whole_weight,
        key,
        wait_ns
    from engine_traced
),

classed as (
    select
        trace_id,
        start,
        weight,
        whole_weight,
        wait_ns,
        start >= {since:DateTime64(9, 'UTC')} and start < {until:DateTime64(9, 'UTC')} as in_window,
        start >= {baseline_since:DateTime64(9, 'UTC')} and start < {baseline_until:DateTime64(9, 'UTC')} as earlier,
        quantileExactWeightedInterpolatedIf(0.5)(wait_ns, whole_weight, in_window) over () * {times:Float64}
            as long_wait_ns,
        class.1 as everyone,
        class.2 as class_key
    from queued
    array join [(1, ''), (0, queued.key)] as class
),

placed as (
    select
        *,
        intDiv(
            (row_number() over (partition by everyone, class_key, earlier order by start asc, trace_id asc) - 1) * 8,
            count() over (partition by everyone, class_key, earlier)
        ) as block
    from classed
),

classes as (
    select
        everyone,
        class_key,
        sumIf(weight, in_window) as window_weight,
        countIf(in_window) as kept_requests,
        sumIf(wait_ns * weight, in_window) as wait_sum_ns,
        quantilesExactWeightedInterpolatedIf(0.5, 0.9, 0.95, 0.99)(wait_ns, whole_weight, in_window) as wait_q,
        maxIf(wait_ns, in_window) as wait_max_ns,
        any(placed.long_wait_ns) as long_wait_ns,
        sumIf(weight, in_window and wait_ns > placed.long_wait_ns) as long_weight,
        lower(hex(argMaxIf(trace_id, wait_ns, in_window))) as longest_trace_id,
        countIf(earlier) as before_requests,
        countIf(not earlier) as after_requests,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(wait_ns, whole_weight, earlier) as before_q,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(wait_ns, whole_weight, not earlier) as after_q,
        -- Of each block, those of the earlier period first; NaN without requests.
        quantileExactWeightedInterpolatedResample(0.99, 0, 16, 1)(wait_ns, whole_weight, block + if(earlier, 0, 8))
            as blocks_ns
    from placed
    group by everyone, class_key
    having kept_requests > 0
)

select
    toUInt8(classes.everyone) as everyone,
    classes.class_key as key,
    toUInt64(round(classes.window_weight * 4096 / {parts:UInt16})) as requests,
    classes.kept_requests as kept_requests,
    classes.wait_sum_ns / classes.window_weight as wait_mean_ns,
    classes.wait_q[1] as wait_p50_ns,
    classes.wait_q[2] as wait_p90_ns,
    classes.wait_q[3] as wait_p95_ns,
    classes.wait_q[4] as wait_p99_ns,
    classes.wait_max_ns as wait_max_ns,
    classes.long_wait_ns as long_wait_ns,
    classes.long_weight / classes.window_weight as long_ratio,
    classes.longest_trace_id as longest_trace_id,
    classes.before_requests as before_requests,
    if(classes.before_requests > 0, classes.before_q[1], null) as before_p50_ns,
    if(classes.before_requests > 0, classes.before_q[2], null) as before_p99_ns,
    classes.after_requests as after_requests,
    if(classes.after_requests > 0, classes.after_q[1], null) as after_p50_ns,
    if(classes.after_requests > 0, classes.after_q[2], null) as after_p99_ns,
    arrayFilter(wait -> isFinite(wait), arraySlice(classes.blocks_ns, 1, 8)) as before_blocks_ns,
    arrayFilter(wait -> isFinite(wait), arraySlice(classes.blocks_ns, 9, 8)) as after_blocks_ns
from classes
order by everyone desc, requests desc, key asc
limit {limit:UInt32} + 1
