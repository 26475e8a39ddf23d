-- Purpose: how much slower or faster each part of the model became against an earlier window, and whether that is noise
-- Steps are compared with steps of the same model, phase, batch size (decode tokens: exact to 8, beyond within 9 %) and
-- number of prompt tokens (within 19 %), so that another load is no drift. A step's time is divided by the baseline's
-- median of its like (of 10 sampled steps or more; others are left out). The compared steps of each window are cut in
-- the order of time into 16 blocks of equal size, as steps near each other resemble each other; `ratio` is the
-- geometric mean of the medians of the window's blocks over that of the baseline's. Interval and p value are Welch's t
-- test on the logarithms of these medians. A report of many lines has to divide its chance of a false alarm among them
-- (`lines`).
-- Parameters:
--   since           DateTime64(9, 'UTC')  begin of the window, inclusive; steps that began in it
--   until           DateTime64(9, 'UTC')  end of the window, exclusive
--   baseline_since  DateTime64(9, 'UTC')  begin of the baseline, inclusive; the windows must not overlap
--   baseline_until  DateTime64(9, 'UTC')  end of the baseline, exclusive
--   service         String = ''           service.name; empty = all
--   model           String = ''           model that the engine runs; empty = all
--   instance        String = ''           service.instance.id; empty = all
--   by              String = 'kind'       a line for each: kind, layer, part (layer and kind)
--   phase           String = 'all'        steps to compare: prefill, decode, all
--   limit           UInt32 = 10000        lines, the largest change first
-- Columns:
--   model            LowCardinality(String)  model that the engine runs
--   layer            Nullable(Int16)    number of the decoder layer; NULL = outside of the layers, or by kind
--   kind             String             kind of layer; empty by layer
--   kept_count       UInt64             sampled steps of the window that could be compared
--   baseline_count   UInt64             sampled steps of the baseline that could be compared
--   p50_ns           Float64            ns, median device time in a step of the window
--   baseline_p50_ns  Float64            ns, the same of the baseline; here another load does make a difference
--   blocks           UInt64             blocks of the window with steps
--   baseline_blocks  UInt64             blocks of the baseline with steps
--   ratio            Float64            time of the window / time of the baseline, like with like
--   ratio_low        Nullable(Float64)  lower end of its interval at 95 %; NULL with fewer than 4 blocks on a side
--   ratio_high       Nullable(Float64)  upper end
--   p_value          Nullable(Float64)  chance of a difference as large if nothing had changed
--   lines            UInt64             lines that were tested, whatever the limit
-- Tables: tailspan.layers
with
samples as (
    select
        model,
        if({by:String} = 'kind' or layers.layer < 0, null, layers.layer) as layer,
        if({by:String} = 'layer', '', toString(layers.kind)) as kind,
        any(start) >= {since:DateTime64(9, 'UTC')} and any(start) < {until:DateTime64(9, 'UTC')} as is_now,
        toUnixTimestamp64Nano(any(start)) as place,
        cityHash64(
            any(phase),
            round(4 * log2(greatest(any(decode_tokens), 1))),
            if(any(prefill_tokens) > 0, round(2 * log2(any(prefill_tokens))), -1)
        ) as like,
        any(whole_steps) as whole_weight,
        sum(layers.ns) as ns
    from tailspan.layers
    where
        (
            (start >= {since:DateTime64(9, 'UTC')} and start < {until:DateTime64(9, 'UTC')})
            or (start >= {baseline_since:DateTime64(9, 'UTC')} and start < {baseline_until:DateTime64(9, 'UTC')})
        )
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or layers.model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and ({phase:String} = 'all' or phase = {phase:String})
    group by cityHash64(trace_id, span_id), model, layer, kind
),

alike as (
    select
        model,
        layer,
        kind,
        quantileExactWeightedInterpolatedIf(0.5)(ns, whole_weight, not is_now) as like_ns,
        groupArray((is_now, place, ns, whole_weight)) as members
    from samples
    where ns > 0
    group by model, layer, kind, like
    having countIf(not is_now) >= 10
),

compared as (
    select
        model,
        layer,
        kind,
        member.1 as is_now,
        member.2 as place,
        member.3 as ns,
        member.4 as whole_weight,
        ns / like_ns as part
    from alike
    array join members as member
),

ordered as (
    select
        *,
        intDiv(
            (row_number() over (partition by model, layer, kind, is_now order by place asc) - 1) * 16,
            count() over (partition by model, layer, kind, is_now)
        ) as block
    from compared
),

blocks as (
    select
        model,
        layer,
        kind,
        is_now,
        block,
        count() as steps,
        groupArray((ns, whole_weight)) as times,
        log(quantileExactWeightedInterpolated(0.5)(part, whole_weight)) as middle
    from ordered
    group by model, layer, kind, is_now, block
),

tested as (
    select
        model,
        layer,
        kind,
        sumIf(steps, is_now) as kept_count,
        sumIf(steps, not is_now) as baseline_count,
        countIf(is_now) as blocks_now,
        countIf(not is_now) as blocks_before,
        exp(avgIf(middle, is_now) - avgIf(middle, not is_now)) as ratio,
        groupArrayArrayIf(times, is_now) as times_now,
        groupArrayArrayIf(times, not is_now) as times_before,
        -- The mean of population 0 less that of population 1, with its interval.
        welchTTest(0.95)(middle, toUInt8(not is_now)) as test,
        blocks_now >= 4 and blocks_before >= 4 as enough,
        isFinite(test.2) as varies
    from blocks
    group by model, layer, kind
    having blocks_now > 0 and blocks_before > 0
)

select
    model,
    layer,
    kind,
    kept_count,
    baseline_count,
    arrayReduce('quantileExactWeightedInterpolated(0.5)', times_now.1, times_now.2) as p50_ns,
    arrayReduce('quantileExactWeightedInterpolated(0.5)', times_before.1, times_before.2) as baseline_p50_ns,
    blocks_now as blocks,
    blocks_before as baseline_blocks,
    ratio,
    if(enough, if(varies, exp(test.3), ratio), null) as ratio_low,
    if(enough, if(varies, exp(test.4), ratio), null) as ratio_high,
    if(enough, if(varies, test.2, toFloat64(ratio = 1)), null) as p_value,
    count() over () as lines
from tested
order by abs(log(ratio)) desc, model asc, layer asc, kind asc
limit {limit:UInt32}
