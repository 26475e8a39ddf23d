-- Purpose: inter-token latency (ITL) by model: percentiles over every gap between tokens
-- Adds up the log-bucket histograms of the decode spans. Bucket b holds gaps in (2^(b/32), 2^((b+1)/32)] ns and is
-- shown by its middle on the log scale, which is within 1.1 % of every gap in it; the sum of gaps is as exact.
-- A gap counts with the weight of its span, so that sampled data give unbiased percentiles.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   model           LowCardinality(String)  gen_ai.request.model
--   decode_spans    UInt64                  decode spans with a histogram, weighted, rounded
--   kept_spans      UInt64                  decode spans that are stored and stand for them
--   gaps            UInt64                  gaps between tokens, weighted, rounded
--   itl_mean_ns     Float64                 ns, mean gap, within 1.1 %
--   itl_p50_ns      Float64                 ns, the gap at rank ceil(q * gaps), within 1.1 %
--   itl_p90_ns      Float64                 ns
--   itl_p95_ns      Float64                 ns
--   itl_p99_ns      Float64                 ns
--   itl_p999_ns     Float64                 ns
--   itl_max_ns      Float64                 ns
-- Tables: tailspan.spans
with
histograms as (
    select
        model,
        weight,
        arrayMap(
            pair -> splitByChar(':', pair),
            splitByChar(' ', attributes_string['tailspan.itl.histogram'])
        ) as pairs
    from tailspan.spans
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and role = 'stage'
        and stage = 'decode'
        and attributes_string['tailspan.itl.histogram'] != ''
),

buckets as (
    select
        model,
        toUInt64(round(sum(weight))) as decode_spans,
        count() as kept_spans,
        sumMap(
            arrayMap(pair -> toInt32OrZero(pair[1]), pairs),
            arrayMap(pair -> toUInt64OrZero(pair[2]) * weight, pairs)
        ) as summed,
        arrayMap(bucket -> exp2((bucket + 0.5) / 32), summed.1) as gaps_ns,
        summed.2 as counts,
        arrayCumSum(counts) as ranks,
        arraySum(counts) as gap_weight
    from histograms
    group by model
)

select
    model,
    decode_spans,
    kept_spans,
    toUInt64(round(gap_weight)) as gaps,
    arraySum(arrayMap((gap_ns, number) -> gap_ns * number, gaps_ns, counts)) / gap_weight as itl_mean_ns,
    gaps_ns[arrayFirstIndex(rank -> rank >= ceil(0.5 * gap_weight), ranks)] as itl_p50_ns,
    gaps_ns[arrayFirstIndex(rank -> rank >= ceil(0.9 * gap_weight), ranks)] as itl_p90_ns,
    gaps_ns[arrayFirstIndex(rank -> rank >= ceil(0.95 * gap_weight), ranks)] as itl_p95_ns,
    gaps_ns[arrayFirstIndex(rank -> rank >= ceil(0.99 * gap_weight), ranks)] as itl_p99_ns,
    gaps_ns[arrayFirstIndex(rank -> rank >= ceil(0.999 * gap_weight), ranks)] as itl_p999_ns,
    gaps_ns[-1] as itl_max_ns
from buckets
where gap_weight > 0
order by gaps desc, model asc
