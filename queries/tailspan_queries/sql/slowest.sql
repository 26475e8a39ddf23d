-- Purpose: the slowest requests, each with the stage that took most of its time
-- The rollup by minute knows the longest request of each minute and instance. The n slowest lie in the n cells whose
-- longest are longest, so that only these minutes are read, and those at the ends of the window that are not whole.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   limit     UInt32 = 10           requests to list
-- Columns:
--   trace_id        String                  32 hex digits
--   span_id         String                  span of the request, 16 hex digits
--   request_id      String                  the engine's request id
--   start           DateTime64(9, 'UTC')    begin of the request
--   service         LowCardinality(String)  service.name
--   instance        LowCardinality(String)  service.instance.id
--   model           LowCardinality(String)  gen_ai.request.model
--   e2e_ns          Int64                   ns, end-to-end time
--   ttft_ns         Nullable(Int64)         ns, time to first token; NULL without a token
--   input_tokens    Int64                   prompt tokens
--   output_tokens   Int64                   generated tokens
--   status_code     Int8                    OTLP status: 0 unset, 1 ok, 2 error
--   dominant_stage  String                  stage with the most wall time, or `unattributed`
--   dominant_ns     Int64                   ns, its wall time
--   dominant_ratio  Float64                 its share of end-to-end
-- Tables: tailspan.requests, tailspan.stage_minutes, tailspan.stages
with
{since:DateTime64(9, 'UTC')} as window_begin,
{until:DateTime64(9, 'UTC')} as window_end,

longest_minutes as (
    select minute
    from tailspan.stage_minutes
    where
        stage = 'request'
        and minute >= window_begin
        and minute < toStartOfMinute(window_end)
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    group by service, model, instance, minute
    order by max(wall_max_ns) desc, minute asc
    limit {limit:UInt32}
),

-- In the unit of the primary key of `spans`.
read_times as (
    select toStartOfFiveMinutes(minute) as five_minutes
    from longest_minutes
    union distinct
    select toStartOfFiveMinutes(arrayJoin([window_begin, window_end])) as five_minutes
),

slow as (
    select *
    from tailspan.requests
    where
        toStartOfFiveMinutes(start) in (select five_minutes from read_times)
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    order by e2e_ns desc, trace_id asc, span_id asc
    limit {limit:UInt32}
),

-- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
part_times as (
    select arrayJoin(
        arrayMap(
            number -> toStartOfFiveMinutes(start - toIntervalMinute(1)) + toIntervalMinute(5 * number),
            range(toUInt64(least(intDiv(greatest(e2e_ns, 0), 300000000000), 10000) + 3))
        )
    ) as five_minutes
    from slow
),

parts as (
    select
        trace_id,
        request_span_id,
        -- A stage that was interrupted has several spans.
        sumMap([toString(stage)], [wall_ns]) as summed,
        arrayZip(summed.1, summed.2) as stages,
        arraySum(part -> part.2, stages) as attributed_ns
    from tailspan.stages
    where
        toStartOfFiveMinutes(start) in (select five_minutes from part_times)
        and (trace_id, request_span_id) in (
            select
                trace_id,
                span_id
            from slow
        )
    group by trace_id, request_span_id
)

select
    lower(hex(slow.trace_id)) as trace_id,
    lower(hex(slow.span_id)) as span_id,
    slow.request_id,
    slow.start,
    slow.service,
    slow.instance,
    slow.model,
    slow.e2e_ns,
    if(slow.ttft_ns > 0, slow.ttft_ns, null) as ttft_ns,
    slow.input_tokens,
    slow.output_tokens,
    slow.status_code,
    ranked.1 as dominant_stage,
    ranked.2 as dominant_ns,
    if(slow.e2e_ns > 0, dominant_ns / slow.e2e_ns, 0) as dominant_ratio
from slow
left join parts on slow.trace_id = parts.trace_id and slow.span_id = parts.request_span_id
array join
    arraySlice(
        arrayReverseSort(
            part -> part.2, arrayConcat(parts.stages, [('unattributed', slow.e2e_ns - parts.attributed_ns)])
        ),
        1,
        1
    ) as ranked
order by e2e_ns desc, trace_id asc, span_id asc
