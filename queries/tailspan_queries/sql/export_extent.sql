-- Purpose: how much there is to export to a trace viewer, and when the first of it began
-- Parameters:
--   since       DateTime64(9, 'UTC')  begin of the window, inclusive
--   until       DateTime64(9, 'UTC')  end of the window, exclusive
--   service     String = ''           service.name; empty = all
--   model       String = ''           gen_ai.request.model; empty = all
--   instance    String = ''           service.instance.id; empty = all
--   engine_id   String = ''           of steps: engine instance; empty = all
--   first_step  Int64 = 0             of steps: this one and later ones
--   last_step   Int64 = 0             of steps: this one and earlier ones; 0 = any
--   limit       UInt32 = 2000         requests of which the traces are searched for the earliest begin
-- Columns:
--   requests        UInt64           requests that began within the window
--   steps           UInt64           engine steps that began within the window
--   trace_begin_ns  Nullable(Int64)  ns since the epoch: begin of the earliest span of the requests' traces
--   step_begin_ns   Nullable(Int64)  ns since the epoch: begin of the earliest step
-- Tables: tailspan.requests, tailspan.spans, tailspan.traces
with
wanted as (
    select
        requests.trace_id as trace_id,
        requests.span_id as span_id,
        requests.start as start
    from tailspan.requests
    where
        requests.start >= {since:DateTime64(9, 'UTC')}
        and requests.start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or requests.service = {service:String})
        and ({model:String} = '' or requests.model = {model:String})
        and ({instance:String} = '' or requests.instance = {instance:String})
),

requests_found as (
    select count() as requests from wanted
),

traces_found as (
    select minOrNull(toUnixTimestamp64Nano(traces.start)) as trace_begin_ns
    from tailspan.traces
    where
        traces.trace_id in (
            select ordered.trace_id
            from (
                select wanted.trace_id
                from wanted
                order by wanted.start, wanted.trace_id, wanted.span_id
                limit {limit:UInt32}
            ) as ordered
        )
),

steps_found as (
    select
        count() as steps,
        minOrNull(toUnixTimestamp64Nano(spans.start)) as step_begin_ns
    from tailspan.spans
    where
        role = 'step'
        and spans.start >= {since:DateTime64(9, 'UTC')}
        and spans.start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or spans.service = {service:String})
        and ({model:String} = '' or spans.model = {model:String})
        and ({instance:String} = '' or spans.instance = {instance:String})
        and ({engine_id:String} = '' or spans.engine_id = {engine_id:String})
        and spans.step >= {first_step:Int64}
        and ({last_step:Int64} = 0 or spans.step <= {last_step:Int64})
)

select
    requests_found.requests as requests,
    steps_found.steps as steps,
    traces_found.trace_begin_ns as trace_begin_ns,
    steps_found.step_begin_ns as step_begin_ns
from requests_found
cross join steps_found
cross join traces_found
