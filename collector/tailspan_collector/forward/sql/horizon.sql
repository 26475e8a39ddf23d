-- Purpose: from where to where spans can be read now: nothing that came by then can be missing or come later
-- Parameters:
--   after          Int64  where the slice begins, unix time, s
--   most_behind_s  Int64  how long ago it may begin at most, s
--   settle_s       Int64  how long ago it must end, s
--   slice_s        Int64  longest slice, s
-- Columns:
--   now    Int64  unix time, s
--   after  Int64  begin of the slice, unix time, s; later than the parameter if that is too long ago
--   until  Int64  end of the slice, unix time, s; not after `after` if there is no slice yet
-- Tables: system.processes (spans of inserts that run have a time already, but cannot be seen yet)
with
    clock as (
        select
            toInt64(toUnixTimestamp(now())) as now_s,
            greatest({after:Int64}, now_s - {most_behind_s:Int64}) as after_s
    ),

    running as (
        select min(toInt64(toUnixTimestamp(now())) - toInt64(ceil(elapsed))) as oldest_insert_s
        from system.processes
        where query_kind = 'Insert' and position(query, 'otlp_traces') > 0
    )

select
    clock.now_s as now,
    clock.after_s as after,
    least(
        clock.after_s + {slice_s:Int64},
        clock.now_s - greatest({settle_s:Int64}, 1),
        if(running.oldest_insert_s > 0, running.oldest_insert_s - 2, clock.now_s)
    ) as until
from clock
cross join running
