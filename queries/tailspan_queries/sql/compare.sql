-- Purpose: the times of requests by blocks of time, one array for each stage, to compare two windows or versions
-- Several spans of one stage of a request are one value, their sum. `request` is the end-to-end time, `ttft` the time
-- to first token. An attribute is looked up on the request's span, then on its resource.
-- Parameters:
--   since      DateTime64(9, 'UTC')  begin of the window, inclusive; requests that began in it
--   until      DateTime64(9, 'UTC')  end of the window, exclusive
--   service    String = ''           service.name; empty = all
--   model      String = ''           gen_ai.request.model; empty = all
--   instance   String = ''           service.instance.id; empty = all
--   attribute  String = ''           key of an attribute that a request must have; empty = all
--   value      String = ''           the attribute's value as text
--   parts      UInt16 = 4096      traces to read: so many of the 4096 parts that a hash divides them into
--   spans      Identifier = 'spans'  spans, or spans_sample where it holds these parts of the window
--   block_ns   Int64 = 60000000000   ns, length of a block of time, from the begin of the window on
-- Columns:
--   part           String          stage, `unattributed`, `ttft` or `request`
--   block          Int64           number of the block in which the requests began, from 0
--   numbers        Array(UInt64)   number of each request, the same in all parts of this answer
--   wall_ns        Array(Float64)  ns, wall time of each; of `ttft`, time to first token
--   weights        Array(Float64)  how many requests each stands for; only of `request`
--   input_tokens   Array(Int64)    prompt tokens of each; only of `request`
--   output_tokens  Array(Int64)    generated tokens of each; only of `request`
--   failed         Array(UInt8)    1 = status error; only of `request`
-- Tables: tailspan.engine_requests, tailspan.spans, tailspan.spans_sample, tailspan.stage_minutes
with
-- From the rollup: as long as the longest request, stages of the window's requests can begin after its end.
longest as (
    select max(wall_max_ns) as e2e_ns
    from tailspan.stage_minutes
    where
        stage = 'request'
        and minute >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and minute < {until:DateTime64(9, 'UTC')}
),

traced as (
    select
        anyIf(spans.start, role = 'request') as request_start,
        anyIf(duration_ns, role = 'request') as e2e_ns,
        anyIf(spans.ttft_ns, role = 'request') as request_ttft_ns,
        anyIf(spans.weight, role = 'request') as request_weight,
        anyIf(spans.input_tokens, role = 'request') as prompt_tokens,
        anyIf(spans.output_tokens, role = 'request') as generated_tokens,
        anyIf(status_code, role = 'request') = 2 as request_failed,
        groupArrayIf((spans.stage, duration_ns), role = 'stage') as stages
    from tailspan.{spans:Identifier} as spans
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role in ('request', 'stage')
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
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
            -- if() with a parameter is decided before anything is read, so that maps are read only if they are needed.
            and if(
                {attribute:String} = '',
                true,
                if(
                    {attribute:String} = 'gen_ai.request.model',
                    model = {value:String},
                    if(
                        {attribute:String} = 'tailspan.engine.id',
                        engine_id = {value:String},
                        multiIf(
                            mapContains(attributes_string, {attribute:String}),
                            attributes_string[{attribute:String}] = {value:String},
                            mapContains(attributes_int, {attribute:String}),
                            toString(attributes_int[{attribute:String}]) = {value:String},
                            mapContains(attributes_bool, {attribute:String}),
                            toString(attributes_bool[{attribute:String}]) = {value:String},
                            mapContains(attributes_double, {attribute:String}),
                            toString(attributes_double[{attribute:String}]) = {value:String},
                            -- The text of the pair within that of the resource, so that few resources are looked at.
                            multiSearchAny(
                                resource,
                                arrayMap(
                                    kind -> toString(({attribute:String}, concat(kind, ':', {value:String}))),
                                    ['string', 'int', 'bool', 'double']
                                )
                            )
                        )
                    )
                )
            )
        ) > 0
),

-- Requests that only the engine's own tracing reported.
engine_traced as (
    select
        start as request_start,
        e2e_ns,
        ttft_ns as request_ttft_ns,
        toFloat64(1) as request_weight,
        engine_requests.input_tokens as prompt_tokens,
        engine_requests.output_tokens as generated_tokens,
        status_code = 2 as request_failed,
        arrayZip(stages.stage, stages.wall_ns) as stages
    from tailspan.engine_requests
    where
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and multiIf(
            {attribute:String} = '', true,
            {attribute:String} = 'service.name', service = {value:String},
            {attribute:String} = 'service.instance.id', instance = {value:String},
            {attribute:String} = 'gen_ai.request.model', model = {value:String},
            false
        )
),

ledgers as (
    select * from traced
    union all
    select * from engine_traced
),

numbered as (
    select
        *,
        rowNumberInAllBlocks() as request,
        toUnixTimestamp64Nano(request_start) - toUnixTimestamp64Nano({since:DateTime64(9, 'UTC')}) as offset_ns,
        intDiv(offset_ns, {block_ns:Int64}) as block,
        arrayConcat(
            arrayMap(
                name -> (name, arraySum(entry -> if(entry.1 = name, entry.2, 0), stages)),
                arrayDistinct(arrayMap(entry -> entry.1, stages))
            ),
            if(request_ttft_ns > 0, [('ttft', request_ttft_ns)], []),
            [('unattributed', e2e_ns - arraySum(entry -> entry.2, stages)), ('request', e2e_ns)]
        ) as parts
    from ledgers
)

select
    item.1 as part,
    block,
    groupArray(request) as numbers,
    groupArray(toFloat64(item.2)) as wall_ns,
    groupArrayIf(request_weight, item.1 = 'request') as weights,
    groupArrayIf(prompt_tokens, item.1 = 'request') as input_tokens,
    groupArrayIf(generated_tokens, item.1 = 'request') as output_tokens,
    groupArrayIf(toUInt8(request_failed), item.1 = 'request') as failed
from numbered
array join parts as item
group by part, block
order by part asc, block asc
