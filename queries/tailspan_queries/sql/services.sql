-- Purpose: which services, instances and models sent requests, and when
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
-- Columns:
--   service       LowCardinality(String)  service.name
--   instance      LowCardinality(String)  service.instance.id
--   model         LowCardinality(String)  gen_ai.request.model
--   requests      UInt64                  requests, weighted, rounded
--   kept_count    UInt64                  requests that are stored and stand for them
--   error_count   UInt64                  of `requests`, with status error
--   first_minute  DateTime('UTC')         minute of the first request
--   last_minute   DateTime('UTC')         minute of the last request
-- Tables: tailspan.stage_minutes
select
    service,
    instance,
    model,
    toUInt64(round(sum(stage_minutes.count))) as requests,
    sum(span_count) as kept_count,
    toUInt64(round(sum(stage_minutes.error_count))) as error_count,
    min(minute) as first_minute,
    max(minute) as last_minute
from tailspan.stage_minutes
where
    stage = 'request'
    and minute >= {since:DateTime64(9, 'UTC')}
    and minute < {until:DateTime64(9, 'UTC')}
group by service, instance, model
order by requests desc, service asc, instance asc, model asc
