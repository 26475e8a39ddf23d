-- Purpose: from when on the hourly rollup and the stored sample hold what the spans of the window do
-- Both tables are filled by views behind `spans`, and know nothing of what was stored before the views were there. An
-- hour is covered if it counts as many stored requests as its minutes do.
-- Parameters:
--   since  DateTime64(9, 'UTC')  begin of the window, inclusive
--   until  DateTime64(9, 'UTC')  end of the window, exclusive
-- Columns:
--   first_hour     DateTime('UTC')  first hour of the window with requests; 1970 if there are none
--   covered_since  DateTime('UTC')  first hour of the window that is covered; 1970 if none is
-- Tables: tailspan.stage_hours, tailspan.stage_minutes
with
toStartOfHour({since:DateTime64(9, 'UTC')}) as hours_begin,

from_minutes as (
    select
        toStartOfHour(minute) as hour,
        sum(span_count) as span_count
    from tailspan.stage_minutes
    where stage = 'request' and minute >= hours_begin and minute < {until:DateTime64(9, 'UTC')}
    group by hour
),

from_hours as (
    select
        hour,
        sum(span_count) as span_count
    from tailspan.stage_hours
    where stage = 'request' and hour >= hours_begin and hour < {until:DateTime64(9, 'UTC')}
    group by hour
)

select
    min(from_minutes.hour) as first_hour,
    minIf(from_minutes.hour, from_hours.span_count >= from_minutes.span_count) as covered_since
from from_minutes
left join from_hours on from_minutes.hour = from_hours.hour
