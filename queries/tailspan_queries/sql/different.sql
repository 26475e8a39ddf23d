-- Purpose: how often each value of each attribute is among the slowest requests and among all, for `tailspan different`
-- A request is slow if its end-to-end time reaches the quantile that leaves the slowest share above it. Attributes are
-- those of the request span and its resource, strings, integers and booleans with at most 50 values, and what the
-- request's stages and steps tell: `preempted`, `chunked`, `cached` (yes or no) and, by powers of two of which `value`
-- is the lower end, `gen_ai.usage.input_tokens`, `gen_ai.usage.output_tokens` and, only where every request is read,
-- `batch`, the requests in the steps of its decode, mean. The row without an attribute is all requests. Counts come by
-- block of time: 32 blocks with as many requests each, since requests near each other resemble each other. `members`
-- says which of about 4,000 requests (1,000 slow ones, 3,000 others, chosen by hash) a row holds: even numbers are slow
-- ones; with fewer requests it is complete. Every request counts with its weight; a sample is not scaled up.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   slowest   Float64 = 0.01        share of requests that is slow, 0 to 1
--   parts     UInt16 = 4096         traces that are read: so many of the 4096 parts that a hash divides them into
--   spans     Identifier = 'spans'  spans, or spans_sample where it holds these parts of the window
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
--   members         Array(UInt64)   numbers of its requests among the 4,000
-- Tables: tailspan.engine_requests, tailspan.spans, tailspan.spans_sample, tailspan.stage_minutes, tailspan.steps
with
longest as (
    select toInt64(max(wall_max_ns)) as e2e_ns
    from tailspan.stage_minutes
    where
        stage = 'request'
        and minute >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and minute < {until:DateTime64(9, 'UTC')}
),

-- Attributes with many values, by the first requests: an id of each request would be as many groups as requests.
many_valued as (
    select pair.1 as key
    from (
        select
            arrayConcat(
                arrayMap(
                    (key, held) -> (toString(key), held), mapKeys(attributes_string), mapValues(attributes_string)
                ),
                arrayMap(
                    (key, held) -> (toString(key), toString(held)), mapKeys(attributes_int), mapValues(attributes_int)
                )
            ) as pairs
        from tailspan.{spans:Identifier}
        where
            role = 'request'
            and start >= {since:DateTime64(9, 'UTC')}
            and start < {until:DateTime64(9, 'UTC')}
            and ({service:String} = '' or service = {service:String})
            and ({model:String} = '' or model = {model:String})
            and ({instance:String} = '' or instance = {instance:String})
        limit 10000 -- noqa: AM09
    ) as first_requests
    array join pairs as pair
    group by key
    having uniqUpTo(50)(pair.2) > 50
),

-- What a request is judged by: from which time on it is slow, and where blocks of time begin.
measured as (
    select
        trace_id,
        start,
        duration_ns as e2e_ns,
        whole_weight
    from tailspan.{spans:Identifier}
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role = 'request'
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
    where
        ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    union all
    select
        trace_id,
        start,
        e2e_ns,
        toUInt64(1) as whole_weight
    from tailspan.engine_requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and sipHash64(trace_id) % 4096 < {parts:UInt16}
),

bounds as (
    select
        assumeNotNull(quantileExactWeightedInterpolated(1 - {slowest:Float64})(e2e_ns, whole_weight)) as threshold_ns,
        quantilesExact(
            0.03125, 0.0625, 0.09375, 0.125, 0.15625, 0.1875, 0.21875, 0.25, 0.28125, 0.3125, 0.34375, 0.375,
            0.40625, 0.4375, 0.46875, 0.5, 0.53125, 0.5625, 0.59375, 0.625, 0.65625, 0.6875, 0.71875, 0.75,
            0.78125, 0.8125, 0.84375, 0.875, 0.90625, 0.9375, 0.96875
        )(start) as begins,
        arrayCount(held_ns -> held_ns >= threshold_ns, groupArray(measured.e2e_ns)) as slow_count,
        count() - slow_count as other_count
    from measured
),

-- Requests with their stages.
traced as (
    select
        cityHash64(trace_id, if(role = 'request', span_id, parent_span_id)) as hash,
        anyIf(start, role = 'request') as begin,
        anyIf(duration_ns, role = 'request') as e2e_ns,
        anyIf(weight, role = 'request') as request_weight,
        anyIf(whole_weight, role = 'request') as request_whole_weight,
        anyIf(input_tokens, role = 'request') as prompt_tokens,
        anyIf(output_tokens, role = 'request') as generated_tokens,
        anyIf((service, instance, model, engine_id, resource), role = 'request') as owner,
        -- As `anyIf`, which takes twice as long over maps.
        groupArrayIf(1)(attributes_string, role = 'request')[1] as texts,
        groupArrayIf(1)(attributes_int, role = 'request')[1] as numbers,
        groupArrayIf(1)(attributes_bool, role = 'request')[1] as flags,
        groupArrayIf((stage, duration_ns), role = 'stage') as stages,
        countIf(stage = 'preempted') > 0 as preempted,
        countIf(stage = 'prefill') > 0 as prefilled,
        maxIf(attributes_int['tailspan.prefill.chunks'], stage = 'prefill') > 1 as chunked,
        maxIf(attributes_int['tailspan.prefill.cached_tokens'], stage = 'prefill') > 0 as cached
    from tailspan.{spans:Identifier}
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role in ('request', 'stage')
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
        and (
            ({service:String} = '' and {model:String} = '' and {instance:String} = '')
            or trace_id in (select measured.trace_id from measured)
        )
    group by trace_id, if(role = 'request', span_id, parent_span_id)
    having
        countIf(role = 'request') > 0
        and begin >= {since:DateTime64(9, 'UTC')}
        and begin < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or owner.1 = {service:String})
        and ({instance:String} = '' or owner.2 = {instance:String})
        and ({model:String} = '' or owner.3 = {model:String})
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
        -- Steps are in no sample, and there are too many to read them all for a part of the requests.
        {parts:UInt16} = 4096
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
    window up_to_here as (partition by engine order by step asc)
),

decodes as (
    select
        cityHash64(trace_id, parent_span_id) as hash,
        any(cityHash64(service, instance, engine_id)) as engine,
        arrayJoin([(min(first_step) - 1, -1), (max(last_step), 1)]) as bound
    from tailspan.{spans:Identifier}
    where
        {parts:UInt16} = 4096
        and role = 'stage'
        and stage = 'decode'
        and last_step > 0
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select e2e_ns from longest))
        and (
            ({service:String} = '' and {model:String} = '' and {instance:String} = '')
            or trace_id in (select measured.trace_id from measured)
        )
    group by trace_id, parent_span_id
),

batches as (
    select
        bounds.hash as hash,
        sum(step_sums.request_steps * bounds.sign) / sum(step_sums.steps * bounds.sign) as requests
    from (
        select
            hash,
            engine,
            bound.1 as step,
            bound.2 as sign
        from decodes
    ) as bounds
    asof join step_sums on bounds.engine = step_sums.engine and bounds.step >= step_sums.step
    group by bounds.hash
),

asked as (
    select
        hash,
        begin,
        e2e_ns,
        request_weight as weight,
        request_whole_weight as whole_weight,
        arrayMap(entry -> (toString(entry.1), greatest(entry.2, 0) * request_weight), stages) as walls,
        arrayConcat(
            [
                ('gen_ai.request.model', toString(owner.3)),
                ('service.name', toString(owner.1)),
                ('service.instance.id', toString(owner.2)),
                ('tailspan.engine.id', toString(owner.4)),
                -- Decoded when there is one row for each resource.
                ('resource', toString(owner.5)),
                ('tailspan.priority', if(mapContains(numbers, 'tailspan.priority'), '', '0')),
                ('gen_ai.usage.input_tokens', toString(exp2(floor(log2(prompt_tokens))))),
                ('gen_ai.usage.output_tokens', toString(exp2(floor(log2(generated_tokens))))),
                ('preempted', if(preempted, 'yes', 'no')),
                ('chunked', multiIf(not prefilled, '', chunked, 'yes', 'no')),
                ('cached', multiIf(not prefilled, '', cached, 'yes', 'no'))
            ],
            arrayMap((key, held) -> (toString(key), held), mapKeys(texts), mapValues(texts)),
            arrayMap((key, held) -> (toString(key), toString(held)), mapKeys(numbers), mapValues(numbers)),
            arrayMap((key, held) -> (toString(key), toString(held)), mapKeys(flags), mapValues(flags))
        ) as pairs
    from traced
    union all
    -- Requests that only the engine's own tracing reported.
    select
        cityHash64(trace_id, engine_requests.span_id) as hash,
        start as begin,
        e2e_ns,
        toFloat64(1) as weight,
        toUInt64(1) as whole_weight,
        arrayMap(
            (stage, wall_ns) -> (toString(stage), toFloat64(wall_ns)), stages.stage, stages.wall_ns
        ) as walls,
        [
            ('gen_ai.request.model', toString(model)),
            ('service.name', toString(service)),
            ('service.instance.id', toString(instance)),
            ('tailspan.outcome', if(status_code = 2, 'error', 'ok')),
            ('gen_ai.usage.input_tokens', toString(exp2(floor(log2(input_tokens))))),
            ('gen_ai.usage.output_tokens', toString(exp2(floor(log2(output_tokens))))),
            ('preempted', 'no')
        ] as pairs
    from tailspan.engine_requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and sipHash64(trace_id) % 4096 < {parts:UInt16}
),

judged as (
    select
        *,
        (select (threshold_ns, begins, slow_count, other_count) from bounds) as bound,
        bound.1 as threshold_ns,
        e2e_ns >= threshold_ns as slow,
        arrayCount(held -> held <= begin, bound.2) as block,
        -- Some 1,000 slow ones and 3,000 others, chosen by hash.
        hash < 18446744073709551615 / greatest(if(slow, bound.3 / 1000, bound.4 / 3000), 1) as chosen,
        intDiv(hash, 2) * 2 + if(slow, 0, 1) as number
    from asked
),

-- What is added up: of all requests and of slow ones the stages, of others only that they are there.
entered as (
    select
        weight,
        threshold_ns,
        slow,
        block,
        chosen,
        number,
        if(slow, walls, []) as slow_walls,
        arrayPushFront(
            arrayMap(
                pair -> (pair.1, pair.2, slow_walls),
                arrayFilter(
                    -- Measured times are no attributes.
                    pair -> pair.2 != ''
                    and not endsWith(pair.1, '_ns')
                    and not has((select groupArray(key) from many_valued), pair.1),
                    -- What has a column can be among the attributes too.
                    arrayDistinct(
                        if(batch > 0, arrayPushBack(pairs, ('batch', toString(exp2(floor(log2(batch)))))), pairs)
                    )
                )
            ),
            ('', '', walls)
        ) as entries
    from (
        select
            judged.*,
            batches.requests as batch
        from judged
        any left join batches on judged.hash = batches.hash
    ) as with_batch
),

blocks as (
    select
        entry.1 as held_attribute,
        entry.2 as held_value,
        block,
        count() as kept,
        countIf(slow) as kept_slow,
        sum(weight) as requests,
        sumIf(weight, slow) as slow_requests,
        sum(weight * weight) as squared_weight,
        any(threshold_ns) as threshold_ns,
        sumMap(entry.3.1, entry.3.2) as walls,
        sumMapIf(entry.3.1, entry.3.2, slow) as slow_walls,
        groupArrayIf(number, chosen) as members
    from entered
    array join entries as entry
    group by held_attribute, held_value, block
),

named as (
    select
        pair.1 as attribute,
        pair.2 as value,
        held_attribute = 'resource' as of_resource,
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
-- A key of both span and resource is two attributes, so that no request counts twice in one.
group by attribute, value, of_resource
qualify count() over (partition by attribute, of_resource) <= 50
order by attribute asc, value asc
