create view if not exists tailspan.events -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id of the event, 16 raw bytes; an event is a trace of its own',
    span_id FixedString(8) comment 'Span id of the event, 8 raw bytes',
    service LowCardinality(String) comment 'Service that the worker belongs to',
    instance LowCardinality(String) comment 'Instance of the service',
    model LowCardinality(String) comment 'Model of the engine; empty if the event is about the whole worker',
    event LowCardinality(String) comment 'What happened: worker.crash, worker.stall or worker.drops',
    start DateTime64(9, 'UTC') comment 'When it happened or began, UTC, ns',
    message String comment 'What the agent says about it',
    pid Int64 comment 'Process id; 0 if the event is not about one process',
    engine_id LowCardinality(String) comment 'The engine instance',
    step Int64 comment 'Number of the engine''s last step; 0 if not known',
    step_requests Int64 comment 'Requests in the batch of that step, count; 0 if not known',
    open_requests Int64 comment 'Requests that were under way, count',
    stalled_ns Int64 comment 'Time since the engine''s last step, ns; 0 if it did not stall',
    dropped_records Int64 comment 'Records that found a ring full since the last such event, count',
    dropped_requests Int64 comment 'Requests left out as a whole since the last such event, count',
    dropped_spans Int64 comment 'Spans that found the agent''s queue full since the last such event, count',
    open_trace_ids Array(String) comment 'Traces of the requests that were under way, 16 raw bytes each'
)
as
select
    trace_id,
    span_id,
    service,
    instance,
    model,
    name as event,
    start,
    status_message as message,
    attributes_int['tailspan.worker.pid'] as pid,
    engine_id,
    step,
    attributes_int['tailspan.step.requests'] as step_requests,
    attributes_int['tailspan.worker.open_requests'] as open_requests,
    attributes_int['tailspan.stalled_ns'] as stalled_ns,
    attributes_int['tailspan.dropped.records'] as dropped_records,
    attributes_int['tailspan.dropped.requests'] as dropped_requests,
    attributes_int['tailspan.dropped.spans'] as dropped_spans,
    links.trace_id as open_trace_ids
from tailspan.spans
where role = 'event'
comment 'What happened to workers, one row each: crashes, stalls, dropped records'
