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
--   window_scanned   UInt64           requests stored for the window and the model, of any service and instance
--   requests         UInt64           requests at any time, weighted, rounded
--   first_minute     DateTime('UTC')  minute of the first request; 1970 if there is none
--   last_minute      DateTime('UTC')  minute of the last request; 1970 if there is none
-- Tables: tailspan.stage_minutes
with
minute >= {since:DateTime64(9, 'UTC')} and minute < {until:DateTime64(9, 'UTC')} as within,
(
    ({service:String} = '' or service = {service:String}) and ({instance:String} = '' or instance = {instance:String})
) as chosen

select
    toUInt64(round(sumIf(count, within and chosen))) as window_requests,
    sumIf(span_count, within and chosen) as window_kept,
    sumIf(span_count, within) as window_scanned,
    toUInt64(round(sumIf(count, chosen))) as requests,
    minIf(minute, chosen) as first_minute,
    maxIf(minute, chosen) as last_minute
from tailspan.stage_minutes
where
    stage = 'request'
    and ({model:String} = '' or model = {model:String})
