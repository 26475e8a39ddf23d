-- Purpose: what happened to workers: crashes, stalls, dropped records
-- An event of a worker as a whole names no model and passes every filter for one.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   limit     UInt32 = 10000        events to list, the latest
-- Columns:
--   event             LowCardinality(String)  worker.crash, worker.stall or worker.drops
--   start             DateTime64(9, 'UTC')    when it happened
--   service           LowCardinality(String)  service.name
--   instance          LowCardinality(String)  service.instance.id
--   model             LowCardinality(String)  model of the engine; empty if the event is about the whole worker
--   pid               Int64                   process id; 0 if the event is not about one process
--   engine_id         LowCardinality(String)  engine instance
--   step              Int64                   the engine's last step; 0 if not known
--   step_requests     Int64                   requests in the batch of that step
--   open_requests     Int64                   requests that were under way
--   stalled_ns        Int64                   ns since the engine's last step; 0 if it did not stall
--   dropped_records   Int64                   records that found a ring full
--   dropped_requests  Int64                   requests left out as a whole
--   dropped_spans     Int64                   spans that found the agent's queue full
--   trace_id          String                  trace of the event itself, 32 hex digits
--   open_trace_ids    Array(String)           traces of the requests that were under way, 32 hex digits each
-- Tables: tailspan.events
select
    event,
    start,
    service,
    instance,
    model,
    pid,
    engine_id,
    step,
    step_requests,
    open_requests,
    stalled_ns,
    dropped_records,
    dropped_requests,
    dropped_spans,
    lower(hex(trace_id)) as trace_id,
    arrayMap(id -> lower(hex(id)), events.open_trace_ids) as open_trace_ids
from tailspan.events
where
    start >= {since:DateTime64(9, 'UTC')}
    and start < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or service = {service:String})
    and ({model:String} = '' or model in ('', {model:String}))
    and ({instance:String} = '' or instance = {instance:String})
order by start desc, trace_id asc
limit {limit:UInt32}
