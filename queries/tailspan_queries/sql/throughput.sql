-- Purpose: requests and tokens per second, minute by minute
-- A request counts in the minute in which it began. The first and last minute of the window may be cut.
-- Requests count with their weight, so that sampled data give unbiased rates.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   minute               DateTime('UTC')  begin of the minute
--   requests             UInt64           requests that began in it, weighted, rounded
--   kept_requests        UInt64           requests that are stored and stand for them
--   requests_per_s       Float64          requests / s
--   input_tokens         Int64            prompt tokens of these requests
--   output_tokens        Int64            generated tokens of these requests
--   input_tokens_per_s   Float64          tokens / s
--   output_tokens_per_s  Float64          tokens / s
-- Tables: tailspan.requests
select
    toStartOfMinute(toDateTime(start, 'UTC')) as minute,
    toUInt64(round(sum(weight))) as requests,
    count() as kept_requests,
    sum(weight) / 60 as requests_per_s,
    toInt64(round(sum(requests.input_tokens * weight))) as input_tokens,
    toInt64(round(sum(requests.output_tokens * weight))) as output_tokens,
    input_tokens / 60 as input_tokens_per_s,
    output_tokens / 60 as output_tokens_per_s
from tailspan.requests
where
    start >= {since:DateTime64(9, 'UTC')}
    and start < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or service = {service:String})
    and ({model:String} = '' or model = {model:String})
    and ({instance:String} = '' or instance = {instance:String})
group by minute
order by minute
