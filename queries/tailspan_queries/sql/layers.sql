-- Purpose: device time of each kind of layer, of each layer, or of each part of the model, in the sampled steps
-- A sampled step counts as often as the steps of its phase that it stands for. The time of a line in a step is the sum
-- of its parts: `attention` by kind is the attention of all layers together. The parts of a step partition its device
-- time, so the shares of the lines of one model (and batch size) sum to 1. Percentiles interpolate, as
-- numpy.percentile does, over the steps that have the line, each repeated as often as it counts.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; steps that began in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           model that the engine runs; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   by        String = 'kind'       a line for each: kind, layer, part (layer and kind)
--   phase     String = 'all'        steps to count: prefill (those that computed prompt tokens), decode, all
--   batch     UInt8 = 0             1: lines for each batch size by itself, in buckets of 1, 2-4, 5-8, 9-16 and so on
--   limit     UInt32 = 10000        lines, the largest first
-- Columns:
--   model                LowCardinality(String)  model that the engine runs
--   batch_min            UInt32             requests in the batch, least of the bucket; 0 = all sizes
--   batch_max            UInt32             requests in the batch, largest of the bucket; 0 = all sizes
--   layer                Nullable(Int16)    number of the decoder layer; NULL = outside of the layers, or by kind
--   kind                 String             kind of layer; empty by layer
--   step_count           UInt64             steps that the line is about, estimated from the sampled ones
--   kept_count           UInt64             sampled steps
--   p50_ns               Float64            ns, percentile of the device time in a step
--   p99_ns               Float64            ns
--   mean_ns              Float64            ns
--   per_token_ns         Nullable(Float64)  ns, device time / tokens that the steps computed; NULL without tokens
--   total_ns             Float64            ns, sum over the steps
--   share_ratio          Float64            share of the device time of all steps counted
--   decode_share_ratio   Nullable(Float64)  share of the device time of decode steps; NULL without any
--   prefill_share_ratio  Nullable(Float64)  share of the device time of prefill steps; NULL without any
--   deviation_ratio      Nullable(Float64)  p50 / median of the p50 of all layers of this kind - 1; NULL outside
--   device               String             clocks of the times: cuda, rocm, cpu (the host's clock)
--   mode                 String             how the steps ran: eager, graph
-- Tables: tailspan.layers
with
lines_of_steps as (
    select
        model,
        -- The largest batch size of the bucket: a power of two but 2.
        multiIf(
            {batch:UInt8} = 0, 0,
            requests between 2 and 4, 4,
            toUInt32(exp2(ceil(log2(greatest(requests, 1)))))
        ) as power,
        if({by:String} = 'kind' or layers.layer < 0, null, layers.layer) as layer,
        if({by:String} = 'layer', '', toString(layers.kind)) as kind,
        any(phase = 'decode') as decodes,
        any(steps) as weight,
        any(whole_steps) as whole_weight,
        any(prefill_tokens + decode_tokens) as tokens,
        any(layers.device) as device,
        any(layers.mode) as mode,
        sum(layers.ns) as ns
    from tailspan.layers
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or layers.model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and ({phase:String} = 'all' or phase = {phase:String})
    group by cityHash64(trace_id, span_id), model, power, layer, kind
),

measured as (
    select
        model,
        toUInt32(power) as batch_max,
        toUInt32(multiIf(power < 2, power, power = 4, 2, intDiv(power, 2) + 1)) as batch_min,
        layer,
        kind,
        toUInt64(round(sum(weight))) as step_count,
        count() as kept_count,
        quantilesExactWeightedInterpolated(0.5, 0.99)(ns, whole_weight) as quantiles,
        quantiles[1] as p50_ns,
        quantiles[2] as p99_ns,
        sum(ns * weight) as total_ns,
        total_ns / sum(weight) as mean_ns,
        total_ns / nullIf(sum(tokens * weight), 0) as per_token_ns,
        sum(ns * weight * decodes) as decode_ns,
        total_ns - decode_ns as prefill_ns,
        arrayStringConcat(arraySort(groupUniqArray(toString(lines_of_steps.device))), ' ') as device,
        arrayStringConcat(arraySort(groupUniqArray(toString(lines_of_steps.mode))), ' ') as mode
    from lines_of_steps
    group by model, power, layer, kind
)

select
    model,
    batch_min,
    batch_max,
    layer,
    kind,
    step_count,
    kept_count,
    p50_ns,
    p99_ns,
    mean_ns,
    per_token_ns,
    total_ns,
    coalesce(total_ns / nullIf(sum(total_ns) over whole, 0), 0) as share_ratio,
    decode_ns / nullIf(sum(decode_ns) over whole, 0) as decode_share_ratio,
    prefill_ns / nullIf(sum(prefill_ns) over whole, 0) as prefill_share_ratio,
    if(
        isNull(layer),
        null,
        p50_ns / nullIf(quantileExactInclusiveIf(0.5)(p50_ns, isNotNull(layer)) over of_kind, 0) - 1
    ) as deviation_ratio,
    device,
    mode
from measured
window
    whole as (partition by model, batch_min),
    of_kind as (partition by model, batch_min, kind)
order by model asc, batch_min asc, total_ns desc, layer asc, kind asc
limit {limit:UInt32}
