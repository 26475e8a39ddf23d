-- Purpose: the longest gaps between engine steps while requests were waiting or running, and what followed each
-- Parameters:
--   since         DateTime64(9, 'UTC')  begin of the window, inclusive
--   until         DateTime64(9, 'UTC')  end of the window, exclusive
--   service       String = ''           service.name; empty = all
--   model         String = ''           model that the engine runs; empty = all
--   instance      String = ''           service.instance.id; empty = all
--   threshold_ns  Int64 = 10000000      ns, shortest gap that is listed
--   limit         UInt32 = 10           gaps to list
-- Columns:
--   start           DateTime64(9, 'UTC')    begin of the gap
--   idle_ns         Int64                   ns, length of the gap, time of the host
--   service         LowCardinality(String)  service.name
--   instance        LowCardinality(String)  service.instance.id
--   engine_id       LowCardinality(String)  engine instance
--   step            Int64                   number of the step after the gap
--   trace_id        String                  trace of that step, 32 hex digits
--   wall_ns         Int64                   ns, wall time of that step
--   requests        Int64                   requests in its batch
--   waiting         Int64                   requests that waited for the scheduler
--   joined          UInt32                  requests that joined the batch at it
--   prefill_tokens  Int64                   prompt tokens computed in it
--   decode_tokens   Int64                   decode tokens computed in it
--   preempted       Int64                   evictions
-- Tables: tailspan.spans
select
    spans.start - toIntervalNanosecond(attributes_int['tailspan.step.idle_ns']) as start,
    attributes_int['tailspan.step.idle_ns'] as idle_ns,
    service,
    instance,
    engine_id,
    step,
    lower(hex(spans.trace_id)) as trace_id,
    duration_ns as wall_ns,
    attributes_int['tailspan.step.requests'] as requests,
    attributes_int['tailspan.step.waiting'] as waiting,
    arrayCount(keys -> keys['tailspan.step.link'] = 'string:join', links.attributes) as joined,
    attributes_int['tailspan.step.prefill_tokens'] as prefill_tokens,
    attributes_int['tailspan.step.decode_tokens'] as decode_tokens,
    attributes_int['tailspan.step.preempted'] as preempted
from tailspan.spans
where
    spans.start >= {since:DateTime64(9, 'UTC')}
    and spans.start < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or service = {service:String})
    and ({model:String} = '' or model = {model:String})
    and ({instance:String} = '' or instance = {instance:String})
    and role = 'step'
    and idle_ns >= {threshold_ns:Int64}
order by idle_ns desc, start asc, engine_id asc
limit {limit:UInt32}
