-- Purpose: traces whose id lies in a range, or that hold a request of the given id
-- A prefix of a trace id is a range: the prefix filled up with 0 to the prefix filled up with f.
-- Parameters:
--   first       String       first trace id of the range, 32 hex digits
--   last        String       last trace id of the range, 32 hex digits
--   request_id  String = ''  the engine's request id; empty = none
--   limit       UInt32 = 10  traces to list
-- Columns:
--   trace_id       String                32 hex digits
--   start          DateTime64(9, 'UTC')  begin of the earliest span
--   last_start     DateTime64(9, 'UTC')  begin of the latest span
--   span_count     UInt64                spans
--   request_count  UInt64                requests
-- Tables: tailspan.requests, tailspan.traces
select
    lower(hex(traces.trace_id)) as trace_id,
    toDateTime64(min(traces.start), 9, 'UTC') as start,
    toDateTime64(max(traces.last_start), 9, 'UTC') as last_start,
    sum(traces.span_count) as span_count,
    sum(traces.request_count) as request_count
from tailspan.traces
where
    traces.trace_id between toFixedString(unhex({first:String}), 16) and toFixedString(unhex({last:String}), 16)
    or (
        {request_id:String} != ''
        and traces.trace_id in (
            select requests.trace_id
            from tailspan.requests
            where {request_id:String} != '' and requests.request_id = {request_id:String}
        )
    )
group by traces.trace_id
order by start, trace_id
limit {limit:UInt32}
