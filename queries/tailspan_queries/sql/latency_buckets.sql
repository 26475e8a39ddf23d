-- Purpose: how end-to-end time, TTFT and gaps between tokens (ITL) are distributed: counts by size, on a log scale
-- Four buckets double a time. ITL adds up the histograms of decode spans, whose buckets are an eighth as wide and lie
-- within these, by the begin of the decode as in query `itl`.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   parts     UInt16 = 4096         read so many of the 4096 parts of all traces, sipHash64(trace_id) % 4096
--   spans     Identifier = 'spans'  spans, or spans_sample, which holds the first 256 parts
-- Columns:
--   metric   String   e2e, ttft or itl
--   low_ns   Float64  ns, values are above it
--   high_ns  Float64  ns, values are at most this
--   count    UInt64   requests, or gaps, weighted, rounded
-- Tables: tailspan.engine_requests, tailspan.spans, tailspan.spans_sample
with
-- A value v lies in bucket b if it is above 2^(b / 4) and at most 2^((b + 1) / 4).
request_times as (
    select
        weight,
        arrayJoin([('e2e', duration_ns), ('ttft', ttft_ns)]) as timed
    from tailspan.{spans:Identifier}
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role = 'request'
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    union all
    select
        toFloat64(1) as weight,
        arrayJoin([('e2e', e2e_ns), ('ttft', ttft_ns)]) as timed
    from tailspan.engine_requests
    where
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

gap_buckets as (
    select
        weight,
        splitByChar(
            ':', arrayJoin(splitByChar(' ', attributes_string['tailspan.itl.histogram']))
        ) as pair
    from tailspan.{spans:Identifier}
    prewhere
        sipHash64(trace_id) % 4096 < {parts:UInt16}
        and role = 'stage'
        and stage = 'decode'
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and attributes_string['tailspan.itl.histogram'] != ''
),

amounts as (
    select
        timed.1 as metric,
        toInt32(ceil(4 * log2(timed.2))) - 1 as bucket,
        weight as amount
    from request_times
    where timed.2 > 0
    union all
    select
        'itl' as metric,
        toInt32(floor(toInt32OrZero(pair[1]) / 8)) as bucket,
        toUInt64OrZero(pair[2]) * weight as amount
    from gap_buckets
)

select
    metric,
    exp2(bucket / 4) as low_ns,
    exp2((bucket + 1) / 4) as high_ns,
    toUInt64(round(sum(amount) * (4096 / {parts:UInt16}))) as count
from amounts
group by metric, bucket
having count > 0
order by metric, bucket
