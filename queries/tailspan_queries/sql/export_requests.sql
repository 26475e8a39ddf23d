-- Purpose: requests to export to a trace viewer, in the order of time: of a window, a trace, or some steps of an engine
-- Parameters:
--   since       DateTime64(9, 'UTC')  begin of the window, inclusive
--   until       DateTime64(9, 'UTC')  end of the window, exclusive
--   service     String = ''           service.name; empty = all
--   model       String = ''           gen_ai.request.model; empty = all
--   instance    String = ''           service.instance.id; empty = all
--   trace_id    String = ''           32 hex digits: only requests of this trace; empty = all
--   not_trace   String = ''           32 hex digits: no requests of this trace; empty = all
--   engine_id   String = ''           only requests of which a stage ran in this engine; empty = all
--   first_step  Int64 = 0             with engine_id: in this step or a later one
--   last_step   Int64 = 0             with engine_id: in this step, of the window, or an earlier one; 0 = any
--   limit       UInt32 = 2000         requests to list, the earliest
-- Columns:
--   trace_id         String                  32 hex digits
--   span_id          String                  span of the request, 16 hex digits
--   service          LowCardinality(String)  service.name
--   instance         LowCardinality(String)  service.instance.id
--   name             LowCardinality(String)  name of the span
--   model            LowCardinality(String)  gen_ai.request.model
--   request_id       String                  the engine's request id
--   start_ns         Int64                   ns since the epoch
--   e2e_ns           Int64                   ns, end-to-end time
--   ttft_ns          Int64                   ns, time to first token; 0 without a token
--   unattributed_ns  Int64                   ns that no stage covers
--   gpu_ns           Int64                   ns of device time; -1 where none was measured
--   input_tokens     Int64                   prompt tokens
--   output_tokens    Int64                   generated tokens
--   weight           Float64                 how many requests it stands for; 1 unless sampled
--   status_code      Int8                    OTLP status: 0 unset, 1 ok, 2 error
--   status_message   String                  text of the status
--   outcome          String                  how the request ended: ok, error, client_disconnect, cancelled, lost
--   error_type       String                  class of the error that ended it; empty without one
-- Tables: tailspan.requests, tailspan.stages
select
    lower(hex(requests.trace_id)) as trace_id,
    lower(hex(requests.span_id)) as span_id,
    requests.service as service,
    requests.instance as instance,
    requests.name as name,
    requests.model as model,
    requests.request_id as request_id,
    toUnixTimestamp64Nano(requests.start) as start_ns,
    requests.e2e_ns as e2e_ns,
    requests.ttft_ns as ttft_ns,
    requests.unattributed_ns as unattributed_ns,
    requests.gpu_ns as gpu_ns,
    requests.input_tokens as input_tokens,
    requests.output_tokens as output_tokens,
    requests.weight as weight,
    requests.status_code as status_code,
    requests.status_message as status_message,
    requests.outcome as outcome,
    requests.error_type as error_type
from tailspan.requests
where
    requests.start >= {since:DateTime64(9, 'UTC')}
    and requests.start < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or requests.service = {service:String})
    and ({model:String} = '' or requests.model = {model:String})
    and ({instance:String} = '' or requests.instance = {instance:String})
    and ({trace_id:String} = '' or requests.trace_id = toFixedString(unhex({trace_id:String}), 16))
    and ({not_trace:String} = '' or requests.trace_id != toFixedString(unhex({not_trace:String}), 16))
    and (
        {engine_id:String} = ''
        or (requests.trace_id, requests.span_id) in (
            select
                stages.trace_id,
                stages.request_span_id
            from tailspan.stages
            where
                {engine_id:String} != ''
                and stages.start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
                and stages.engine_id = {engine_id:String}
                and stages.last_step >= {first_step:Int64}
                -- The window holds the steps asked for, and a stage begins before its steps end.
                and (
                    {last_step:Int64} = 0
                    or (stages.first_step <= {last_step:Int64} and stages.start < {until:DateTime64(9, 'UTC')})
                )
                and ({service:String} = '' or stages.service = {service:String})
                and ({instance:String} = '' or stages.instance = {instance:String})
        )
    )
order by start_ns, trace_id, span_id
limit {limit:UInt32}
