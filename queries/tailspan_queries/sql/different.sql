-- Purpose: how often each value of each attribute is among the slowest requests and among all, for `tailspan different`
-- A request is slow if its end-to-end time reaches the quantile that leaves the slowest share above it. Attributes are
-- those of the request span and its resource, strings, integers and booleans with at most 50 values, and what the
-- request's stages and steps tell: `preempted`, `chunked`, `cached` (yes or no) and, by powers of two of which `value`
-- is the lower end, `gen_ai.usage.input_tokens`, `gen_ai.usage.output_tokens` and `batch`, the requests in the steps of
-- its decode, mean. The row without an attribute is all requests. Counts come by block of time: 32 blocks with as many
-- requests each, since requests near each other resemble each other. `members` says which of up to 4,000 requests
-- (1,000 slow ones, 3,000 others, chosen by hash) a row holds: numbers below 1,000 are slow ones; with fewer requests
-- it is complete. Every request counts with its weight.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   slowest   Float64 = 0.01        share of requests that is slow, 0 to 1
--   sample    UInt64 = 1            one request in that many is read, chosen by the first bytes of its trace id
-- Columns:
--   attribute       String          key of the attribute; empty = all requests
--   value           String          its value, or the lower end of its class
--   kept_requests   UInt64          requests that were read
--   kept_slow       UInt64          of these, slow
--   requests        Float64         requests, weighted
--   slow_requests   Float64         of these, slow
--   squared_weight  Float64         sum of the squares of the weights
--   threshold_ns    Float64         ns, end-to-end time from which on a request is slow
--   block_requests  Array(Float64)  of `requests`, those of each block of time
--   block_slow      Array(Float64)  of `slow_requests`, those of each block of time
--   stages          Array(String)   stages of the requests
--   stage_sum_ns    Array(Float64)  ns, sum of each stage over requests, weighted; but for all requests only slow ones
--   slow_sum_ns     Array(Float64)  ns, the same over slow requests
--   members         Array(UInt32)   numbers of its requests among the 4,000
-- Tables: tailspan.engine_requests, tailspan.spans, tailspan.stage_minutes, tailspan.steps
with
toFixedString(
    unhex(concat(leftPad(hex(intDiv(18446744073709551615, {sample:UInt64})), 16, '0'), repeat('F', 16))), 16
) as last_trace_id,

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
        trace_id,
        span_id,
        start,
        duration_ns as e2e_ns,
        weight,
        whole_weight,
        input_tokens,
        output_tokens,
        arrayConcat(
            [
                ('gen_ai.request.model', toString(model)),
                ('service.name', toString(service)),
                ('service.instance.id', toString(instance)),
                ('tailspan.engine.id', toString(engine_id)),
                ('name', toString(name)),
                ('tailspan.priority', toString(attributes_int['tailspan.priority']))
            ],
            arrayMap((key, held) -> (toString(key), held), mapKeys(attributes_string), mapValues(attributes_string)),
            arrayMap(
                (key, held) -> (toString(key), toString(held)), mapKeys(attributes_int), mapValues(attributes_int)
            ),
            arrayMap(
                (key, held) -> (toString(key), toString(held)), mapKeys(attributes_bool), mapValues(attributes_bool)
            ),
            -- Decoded when there is one row for each resource.
            [('resource', toString(resource))]
        ) as pairs
    from tailspan.spans
    where
        role = 'request'
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and trace_id <= last_trace_id
),

-- Requests that only the engine's own tracing reported.
engine_traced as (
    select
        trace_id,
        span_id,
        start,
        e2e_ns,
        toFloat64(1) as weight,
        toUInt64(1) as whole_weight,
        input_tokens,
        output_tokens,
        [
            ('gen_ai.request.model', toString(model)),
            ('service.name', toString(service)),
            ('service.instance.id', toString(instance)),
            ('name', toString(name)),
            ('tailspan.outcome', if(status_code = 2, 'error', 'ok'))
        ] as pairs
    from tailspan.engine_requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and trace_id <= last_trace_id
),

asked as (
    select * from traced
    union all
    select * from engine_traced
),

-- Attributes with many values, by the first requests: an id of each request would be as many groups as requests.
many_valued as (
    select pair.1 as key
    from (
        select pairs
        from asked
        limit 10000 -- noqa: AM09
    ) as first_requests
    array join pairs as pair
    where pair.1 != 'resource'
    group by key
    having uniqUpTo(50)(pair.2) > 50
),

traced_stages as (
    select
        trace_id,
        parent_span_id as request_span_id,
        sumMap([toString(stage)], [toFloat64(greatest(duration_ns, 0))]) as walls,
        countIf(stage = 'preempted') > 0 as preempted,
        countIf(stage = 'prefill') > 0 as prefilled,
        maxIf(attributes_int['tailspan.prefill.chunks'], stage = 'prefill') > 1 as chunked,
        maxIf(attributes_int['tailspan.prefill.cached_tokens'], stage = 'prefill') > 0 as cached,
        anyIf(cityHash64(service, instance, engine_id), stage = 'decode' and last_step > 0) as engine,
        minIf(first_step, stage = 'decode' and last_step > 0) - 1 as before_step,
        maxIf(last_step, stage = 'decode') as until_step
    from tailspan.spans
    where
        role = 'stage'
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
        and trace_id <= last_trace_id
    group by trace_id, parent_span_id
),

engine_stages as (
    select
        trace_id,
        engine_requests.span_id as request_span_id,
        sumMap(
            arrayMap(stage -> toString(stage), stages.stage), arrayMap(wall_ns -> toFloat64(wall_ns), stages.wall_ns)
        ) as walls
    from tailspan.engine_requests
    where
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
        and trace_id <= last_trace_id
    group by trace_id, engine_requests.span_id
),

-- Requests in the steps of an engine up to each of them: the mean of a range is a difference of two.
step_sums as (
    select
        cityHash64(service, instance, engine_id) as engine,
        step,
        sum(requests * weight) over up_to_here as request_steps,
        sum(weight) over up_to_here as steps
    from tailspan.steps
    where
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
        and trace_id <= last_trace_id
    window up_to_here as (partition by engine order by step asc)
),

ledgers as (
    select
        asked.start as start,
        asked.e2e_ns as e2e_ns,
        asked.weight as weight,
        asked.whole_weight as whole_weight,
        cityHash64(asked.trace_id, asked.span_id) as hash,
        arrayConcat(traced_stages.walls.1, engine_stages.walls.1) as stage_names,
        arrayConcat(traced_stages.walls.2, engine_stages.walls.2) as stage_walls,
        arrayDistinct(
            arrayConcat(
                [('', '')],
                arrayFilter(
                    -- Measured times are no attributes.
                    pair -> pair.2 != ''
                    and not endsWith(pair.1, '_ns')
                    and not has((select groupArray(key) from many_valued), pair.1),
                    asked.pairs
                ),
                [
                    ('gen_ai.usage.input_tokens', toString(exp2(floor(log2(asked.input_tokens))))),
                    ('gen_ai.usage.output_tokens', toString(exp2(floor(log2(asked.output_tokens))))),
                    ('preempted', if(traced_stages.preempted, 'yes', 'no'))
                ],
                if(traced_stages.prefilled, [('chunked', if(traced_stages.chunked, 'yes', 'no'))], []),
                if(traced_stages.prefilled, [('cached', if(traced_stages.cached, 'yes', 'no'))], [])
            )
        ) as pairs,
        traced_stages.engine as engine,
        traced_stages.before_step as before_step,
        traced_stages.until_step as until_step
    from asked
    left join traced_stages
        on asked.trace_id = traced_stages.trace_id and asked.span_id = traced_stages.request_span_id
    left join engine_stages
        on asked.trace_id = engine_stages.trace_id and asked.span_id = engine_stages.request_span_id
),

batched as (
    select
        bounds.hash as hash,
        any(bounds.start) as start,
        any(bounds.e2e_ns) as e2e_ns,
        any(bounds.weight) as weight,
        any(bounds.whole_weight) as whole_weight,
        any(bounds.stage_names) as stage_names,
        any(bounds.stage_walls) as stage_walls,
        sum(step_sums.steps * bounds.sign) as steps,
        sum(step_sums.request_steps * bounds.sign) / steps as batch,
        arrayConcat(
            any(bounds.pairs), if(steps > 0 and batch > 0, [('batch', toString(exp2(floor(log2(batch)))))], [])
        ) as pairs
    from (
        select
            *,
            bound.1 as step,
            bound.2 as sign
        from ledgers
        array join if(until_step > 0, [(before_step, -1), (until_step, 1)], [(toInt64(0), 0)]) as bound
    ) as bounds
    asof left join step_sums on bounds.engine = step_sums.engine and bounds.step >= step_sums.step
    group by bounds.hash
),

judged as (
    select
        *,
        quantileExactWeightedInterpolated(1 - {slowest:Float64})(e2e_ns, whole_weight) over () as threshold_ns,
        e2e_ns >= threshold_ns as slow,
        intDiv((row_number() over (order by start asc, hash asc) - 1) * 32, count() over ()) as block
    from batched
),

numbered as (
    select
        *,
        row_number() over (partition by slow order by hash asc) - 1 as place,
        if(slow, place < 1000, place < 3000) as chosen,
        if(slow, place, place + 1000) as number
    from judged
),

blocks as (
    select
        pair.1 as held_attribute,
        pair.2 as held_value,
        block,
        count() as kept,
        countIf(slow) as kept_slow,
        sum(weight) as requests,
        sumIf(weight, slow) as slow_requests,
        sum(weight * weight) as squared_weight,
        any(threshold_ns) as threshold_ns,
        sumMapIf(stage_names, arrayMap(wall_ns -> wall_ns * weight, stage_walls), slow or pair.1 = '') as walls,
        sumMapIf(stage_names, arrayMap(wall_ns -> wall_ns * weight, stage_walls), slow) as slow_walls,
        groupArrayIf(toUInt32(number), chosen) as members
    from numbered
    array join pairs as pair
    group by held_attribute, held_value, block
),

named as (
    select
        pair.1 as attribute,
        pair.2 as value,
        blocks.*
    from blocks
    array join
        if(
            blocks.held_attribute = 'resource',
            arrayMap(
                held -> (held.1, substring(held.2, position(held.2, ':') + 1)),
                arrayFilter(
                    held -> held.1 not in ('service.name', 'service.instance.id'),
                    cast(
                        if(blocks.held_attribute = 'resource', blocks.held_value, '[]'), 'Array(Tuple(String, String))'
                    )
                )
            ),
            [(blocks.held_attribute, blocks.held_value)]
        ) as pair
)

select
    attribute,
    value,
    sum(named.kept) as kept_requests,
    sum(named.kept_slow) as kept_slow,
    sum(named.requests) as requests,
    sum(named.slow_requests) as slow_requests,
    sum(named.squared_weight) as squared_weight,
    assumeNotNull(any(named.threshold_ns)) as threshold_ns,
    sumForEach(arrayMap(place -> if(place = named.block, named.requests, 0), range(32))) as block_requests,
    sumForEach(arrayMap(place -> if(place = named.block, named.slow_requests, 0), range(32))) as block_slow,
    (sumMap(named.walls.1, named.walls.2) as summed).1 as stages,
    summed.2 as stage_sum_ns,
    -- As sums by name: `sumMap` leaves out what is 0.
    arrayMap(
        stage -> (sumMap(named.slow_walls.1, named.slow_walls.2) as slow_summed).2[indexOf(slow_summed.1, stage)],
        stages
    ) as slow_sum_ns,
    arraySort(arrayFlatten(groupArray(named.members))) as members
from named
group by attribute, value
qualify count() over (partition by attribute) <= 50
order by attribute asc, value asc
