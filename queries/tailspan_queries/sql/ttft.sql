-- Purpose: time to first token (TTFT) and time per output token (TPOT) by model, exact
-- TPOT = (e2e - TTFT) / (output tokens - 1), one value for each request with two tokens or more; 0 where the first
-- token came after the end (clocks that were set). Requests count with their weight, so that sampled data give unbiased
-- counts and percentiles. Query `latency` has the same by group, over time and against limits.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   model          LowCardinality(String)  gen_ai.request.model
--   requests       UInt64                  requests, weighted, rounded
--   kept_requests  UInt64                  requests that are stored and stand for them
--   ttft_requests  UInt64                  of `requests`, those that produced a first token
--   ttft_p50_ns    Nullable(Float64)       ns, percentile, interpolated
--   ttft_p90_ns    Nullable(Float64)       ns
--   ttft_p95_ns    Nullable(Float64)       ns
--   ttft_p99_ns    Nullable(Float64)       ns
--   ttft_max_ns    Nullable(Int64)         ns
--   tpot_requests  UInt64                  of `requests`, those with two output tokens or more
--   tpot_p50_ns    Nullable(Float64)       ns a token, percentile, interpolated
--   tpot_p90_ns    Nullable(Float64)       ns a token
--   tpot_p95_ns    Nullable(Float64)       ns a token
--   tpot_p99_ns    Nullable(Float64)       ns a token
--   tpot_max_ns    Nullable(Float64)       ns a token
-- Tables: tailspan.requests
with
timed as (
    select
        model,
        weight,
        whole_weight,
        ttft_ns,
        ttft_ns > 0 as has_ttft,
        has_ttft and output_tokens > 1 as has_tpot,
        greatest(e2e_ns - ttft_ns, 0) / greatest(output_tokens - 1, 1) as tpot_ns
    from tailspan.requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

totals as (
    select
        model,
        toUInt64(round(sum(weight))) as requests,
        count() as kept_requests,
        toUInt64(round(sumIf(weight, has_ttft))) as ttft_requests,
        quantilesExactWeightedInterpolatedIf(0.5, 0.9, 0.95, 0.99)(ttft_ns, whole_weight, has_ttft) as ttft_quantiles,
        maxIf(ttft_ns, has_ttft) as ttft_max,
        toUInt64(round(sumIf(weight, has_tpot))) as tpot_requests,
        quantilesExactWeightedInterpolatedIf(0.5, 0.9, 0.95, 0.99)(tpot_ns, whole_weight, has_tpot) as tpot_quantiles,
        maxIf(tpot_ns, has_tpot) as tpot_max
    from timed
    group by model
)

select
    model,
    requests,
    kept_requests,
    ttft_requests,
    if(ttft_requests > 0, ttft_quantiles[1], null) as ttft_p50_ns,
    if(ttft_requests > 0, ttft_quantiles[2], null) as ttft_p90_ns,
    if(ttft_requests > 0, ttft_quantiles[3], null) as ttft_p95_ns,
    if(ttft_requests > 0, ttft_quantiles[4], null) as ttft_p99_ns,
    if(ttft_requests > 0, ttft_max, null) as ttft_max_ns,
    tpot_requests,
    if(tpot_requests > 0, tpot_quantiles[1], null) as tpot_p50_ns,
    if(tpot_requests > 0, tpot_quantiles[2], null) as tpot_p90_ns,
    if(tpot_requests > 0, tpot_quantiles[3], null) as tpot_p95_ns,
    if(tpot_requests > 0, tpot_quantiles[4], null) as tpot_p99_ns,
    if(tpot_requests > 0, tpot_max, null) as tpot_max_ns
from totals
order by requests desc, model asc
