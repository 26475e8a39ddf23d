create view if not exists tailspan.otel_traces_trace_id_ts -- noqa: PRS
(
    TraceId String comment 'Trace id, 32 hex digits',
    Start DateTime comment 'Begin of the earliest span, UTC, whole seconds',
    End DateTime comment 'Begin of the latest span, UTC, whole seconds'
)
as
select
    lower(hex(trace_id)) as TraceId,
    toDateTime(traces.start) as Start,
    toDateTime(traces.last_start) as End
from tailspan.traces
comment 'When a trace began and ended, to bound a search in otel_traces; a trace may have several rows: take min and max'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
