-- Purpose: how many stored requests of the window are older than the hourly rollup and the stored sample
-- Both tables are filled by views behind `spans`, and know nothing of what was stored before the views were there. The
-- rollup by the minute is as old as `spans`: what an hour of it has more is missing. Looks at whole hours.
-- Parameters:
--   since  DateTime64(9, 'UTC')  begin of the window, inclusive
--   until  DateTime64(9, 'UTC')  end of the window, exclusive
-- Columns:
--   kept_count     Int64  stored requests of the hours that the window touches
--   missing_count  Int64  of these, requests that the hourly rollup lacks; a few while an insert is going on
-- Tables: tailspan.stage_hours, tailspan.stage_minutes
with
counts as (
    select
        toStartOfHour(minute) as hour,
        toInt64(span_count) as by_minute,
        toInt64(0) as by_hour
    from tailspan.stage_minutes
    where
        stage = 'request'
        and toStartOfHour(minute) >= toStartOfHour({since:DateTime64(9, 'UTC')})
        and toStartOfHour(minute) < {until:DateTime64(9, 'UTC')}
    union all
    select
        hour,
        toInt64(0) as by_minute,
        toInt64(span_count) as by_hour
    from tailspan.stage_hours
    where
        stage = 'request'
        and hour >= toStartOfHour({since:DateTime64(9, 'UTC')})
        and hour < {until:DateTime64(9, 'UTC')}
),

hours as (
    select
        greatest(sum(by_minute), sum(by_hour)) as kept,
        kept - sum(by_hour) as missing
    from counts
    group by hour
)

select
    sum(kept) as kept_count,
    sum(missing) as missing_count
from hours
