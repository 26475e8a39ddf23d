-- Purpose: requests that failed or were abandoned: how many, why, and one to look at
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   service         LowCardinality(String)  service.name
--   model           LowCardinality(String)  gen_ai.request.model
--   outcome         String                  error, client_disconnect, cancelled or lost
--   error_type      String                  exception class or HTTP status
--   status_message  String                  message of one of them
--   request_count   UInt64                  requests that ended so, weighted, rounded
--   kept_count      UInt64                  requests that are stored and stand for them
--   last_start      DateTime64(9, 'UTC')    begin of the latest of them
--   last_trace_id   String                  trace id of the latest of them, 32 hex digits
-- Tables: tailspan.requests
select
    service,
    model,
    if(requests.outcome = '', 'error', requests.outcome) as outcome,
    error_type,
    any(requests.status_message) as status_message,
    toUInt64(round(sum(weight))) as request_count,
    count() as kept_count,
    max(start) as last_start,
    lower(hex(argMax(trace_id, start))) as last_trace_id
from tailspan.requests
where
    start >= {since:DateTime64(9, 'UTC')}
    and start < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or service = {service:String})
    and ({model:String} = '' or model = {model:String})
    and ({instance:String} = '' or instance = {instance:String})
    and (status_code = 2 or requests.outcome not in ('', 'ok'))
group by service, model, outcome, error_type
order by request_count desc, last_start desc
