create view if not exists tailspan.trace_summaries -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id, 16 raw bytes',
    start DateTime64(9, 'UTC') comment 'Begin of the earliest span, UTC, ns',
    end DateTime64(9, 'UTC') comment 'End of the latest span, UTC, ns',
    last_start DateTime64(9, 'UTC') comment 'Begin of the latest span, UTC, ns; bounds a search in spans by start',
    span_count UInt64 comment 'Spans, count',
    error_count UInt64 comment 'Spans with status error, count',
    request_count UInt64 comment 'Request spans, count',
    step_count UInt64 comment 'Engine step spans, count',
    weight Float64 comment 'How many traces this one stands for; 1 unless sampled',
    root_service LowCardinality(String) comment 'Service of the span without parent; empty if not seen',
    root_name LowCardinality(String) comment 'Name of the span without parent; empty if not seen'
)
as
select
    trace_id,
    min(traces.start) as start,
    max(traces.end) as end,
    max(traces.last_start) as last_start,
    sum(traces.span_count) as span_count,
    sum(traces.error_count) as error_count,
    sum(traces.request_count) as request_count,
    sum(traces.step_count) as step_count,
    max(traces.weight) as weight,
    max(traces.root_service) as root_service,
    max(traces.root_name) as root_name
from tailspan.traces
group by trace_id
comment 'Every trace, one row each; filter by trace_id'
