-- Purpose: the slowest requests, each with the stage that took most of its time
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
-- Tables: tailspan.requests, tailspan.stages
with
slow as (
    select *
    from tailspan.requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    order by e2e_ns desc, trace_id asc, span_id asc
    limit {limit:UInt32}
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
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select max(e2e_ns) from slow))
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
