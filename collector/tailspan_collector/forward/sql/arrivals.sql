-- Purpose: how many spans came in a slice, and between which times the spans of their traces began
-- Parameters:
--   after  Int64  where the slice begins, unix time, s, exclusive
--   until  Int64  where it ends, unix time, s, inclusive
-- Columns:
--   spans        UInt64  spans that came, count
--   first_start  String  begin of the earliest span of those traces, UTC, ns; traces longer than a day are cut
--   last_start   String  begin of the latest span of those traces, UTC, ns
-- Tables: tailspan.spans, tailspan.traces
with
    arrived as (
        select
            count() as span_count,
            min(start) as first_start,
            max(start) as last_start
        from tailspan.spans
        where stored > toDateTime({after:Int64}, 'UTC') and stored <= toDateTime({until:Int64}, 'UTC')
    ),

    known as (
        select
            count() as row_count,
            min(traces.start) as first_start,
            max(traces.last_start) as last_start
        from tailspan.traces
        where
            traces.day >= toDate((select arrived.first_start from arrived)) - 1
            and traces.trace_id in (
                select trace_id
                from tailspan.spans
                where stored > toDateTime({after:Int64}, 'UTC') and stored <= toDateTime({until:Int64}, 'UTC')
            )
    )

select
    arrived.span_count as spans,
    toString(if(known.row_count > 0, least(arrived.first_start, known.first_start), arrived.first_start))
        as first_start,
    toString(if(known.row_count > 0, greatest(arrived.last_start, known.last_start), arrived.last_start)) as last_start
from arrived
cross join known
