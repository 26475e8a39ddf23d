-- Purpose: how many requests the window holds, and from when to when there are any
-- Reads the rollup, so the window should be whole minutes.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   window_requests  UInt64           requests that began within the window, weighted, rounded
--   window_kept      UInt64           requests that are stored and stand for them
--   requests         UInt64           requests at any time, weighted, rounded
--   first_minute     DateTime('UTC')  minute of the first request; 1970 if there is none
--   last_minute      DateTime('UTC')  minute of the last request; 1970 if there is none
-- Tables: tailspan.stage_minutes
select
    toUInt64(round(sumIf(
        count, minute >= {since:DateTime64(9, 'UTC')} and minute < {until:DateTime64(9, 'UTC')}
    ))) as window_requests,
    sumIf(
        span_count, minute >= {since:DateTime64(9, 'UTC')} and minute < {until:DateTime64(9, 'UTC')}
    ) as window_kept,
    toUInt64(round(sum(count))) as requests,
    min(minute) as first_minute,
    max(minute) as last_minute
from tailspan.stage_minutes
where
    stage = 'request'
    and ({service:String} = '' or service = {service:String})
    and ({model:String} = '' or model = {model:String})
    and ({instance:String} = '' or instance = {instance:String})
