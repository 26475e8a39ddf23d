-- Purpose: what preemption cost: evictions, time evicted, prefill computed again, and the tail with and without them
-- An eviction is a stage `preempted`. The prefill after it computes again what the eviction threw away: its time is
-- `recompute`; of a request that was evicted before its first token it is at most the prefill before the eviction.
-- `extra` is both together, so what the request would have been spared if everything else had stayed the same.
-- Requests count with their weight.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; requests that began in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   by        String = 'engine'     a line for each: model, instance, engine, minute, request; all = one line
--   limit     UInt32 = 1440         lines
-- Columns:
--   key                       String             model, instance, engine id, minute (UTC) or trace id
--   requests                  UInt64             requests, weighted, rounded; by request only those that were evicted
--   kept_count                UInt64             requests that are stored and stand for them
--   hit_requests              UInt64             requests that were evicted
--   hit_ratio                 Float64            evicted requests / requests
--   evictions                 UInt64             evictions
--   evicted_ns                Float64            ns, sum of the time from eviction until scheduled again
--   recompute_ns              Float64            ns, sum of the time of prefill that was computed again
--   recompute_tokens          Float64            prompt and output tokens computed again; not what a cache still held
--   extra_ns                  Float64            ns, time evicted and time of recomputed prefill
--   extra_ratio               Float64            extra / end-to-end time of the evicted requests
--   extra_p50_ns              Nullable(Float64)  ns, percentile over evicted requests of their extra, interpolated
--   extra_p99_ns              Nullable(Float64)  ns
--   extra_max_ns              Nullable(Int64)    ns
--   e2e_p50_ns                Float64            ns, percentile of end-to-end time over all requests, interpolated
--   e2e_p99_ns                Float64            ns
--   others_e2e_p50_ns         Nullable(Float64)  ns, over the requests that were never evicted
--   others_e2e_p99_ns         Nullable(Float64)  ns
--   hit_e2e_p50_ns            Nullable(Float64)  ns, over the requests that were evicted
--   hit_e2e_p99_ns            Nullable(Float64)  ns
--   e2e_without_extra_p99_ns  Float64            ns, over all requests, each without its extra
--   worst_trace_id            String             trace of the request with the largest extra; empty without evictions
-- Tables: tailspan.requests, tailspan.spans
with
chosen as (
    select
        trace_id,
        span_id,
        instance,
        model,
        engine_id,
        start,
        e2e_ns,
        weight,
        whole_weight
    from tailspan.requests
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
),

evicted as (
    select distinct
        trace_id,
        parent_span_id as request_span_id
    from tailspan.spans
    where
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select max(e2e_ns) from chosen))
        and role = 'stage'
        and stage = 'preempted'
),

-- The stages of each evicted request in the order of time, and how far it had come before each of them.
hits as (
    select
        trace_id,
        parent_span_id as request_span_id,
        arraySort(
            groupArray((
                start,
                toString(stage),
                duration_ns,
                last_step - first_step + 1,
                input_tokens - attributes_int['tailspan.prefill.cached_tokens']
            ))
        ) as parts,
        arrayMap(part -> part.2, parts) as names,
        arrayMap(part -> part.3, parts) as walls_ns,
        arrayCumSum(arrayMap(name -> name = 'preempted', names)) as evictions_before,
        arrayCumSum(arrayMap(part -> if(part.2 = 'decode', part.4, 0), parts)) as tokens_before,
        indexOf(names, 'preempted') as first_eviction,
        arraySum(
            arrayMap((name, ns, before) -> ns * (name = 'prefill' and before = 0), names, walls_ns, evictions_before)
        ) as prefill_before_ns,
        arraySum(
            arrayMap((name, ns, before) -> ns * (name = 'prefill' and before > 0), names, walls_ns, evictions_before)
        ) as prefill_after_ns,
        countEqual(names, 'preempted') as evictions,
        arraySum(arrayMap((name, ns) -> ns * (name = 'preempted'), names, walls_ns)) as evicted_ns,
        if(
            has(arraySlice(names, 1, first_eviction), 'decode'),
            prefill_after_ns,
            least(prefill_before_ns, prefill_after_ns)
        ) as recompute_ns,
        arraySum(
            arrayMap(
                (part, before, tokens) -> if(part.2 = 'prefill' and before > 0, part.5 + tokens + (tokens > 0), 0),
                parts, evictions_before, tokens_before
            )
        ) as recompute_tokens
    from tailspan.spans
    where
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select max(e2e_ns) from chosen))
        and role = 'stage'
        and stage in ('prefill', 'decode', 'preempted')
        and (trace_id, parent_span_id) in (
            select
                trace_id,
                request_span_id
            from evicted
        )
    group by trace_id, parent_span_id
),

told as (
    select
        multiIf(
            {by:String} = 'model', toString(chosen.model),
            {by:String} = 'instance', toString(chosen.instance),
            {by:String} = 'engine', toString(chosen.engine_id),
            {by:String} = 'minute', formatDateTime(chosen.start, '%F %R', 'UTC'),
            {by:String} = 'request', lower(hex(chosen.trace_id)),
            'all'
        ) as key,
        chosen.trace_id as trace_id,
        chosen.e2e_ns as e2e_ns,
        chosen.weight as weight,
        chosen.whole_weight as whole_weight,
        hits.evictions > 0 as hit,
        hits.evictions as evictions,
        hits.evicted_ns as evicted_ns,
        hits.recompute_ns as recompute_ns,
        hits.recompute_tokens as recompute_tokens,
        hits.evicted_ns + hits.recompute_ns as extra_ns
    from chosen
    left join hits on chosen.trace_id = hits.trace_id and chosen.span_id = hits.request_span_id
    where {by:String} != 'request' or hits.evictions > 0
)

select
    key,
    toUInt64(round(sum(weight))) as requests,
    count() as kept_count,
    toUInt64(round(sum(weight * hit))) as hit_requests,
    sum(weight * hit) / sum(weight) as hit_ratio,
    toUInt64(round(sum(told.evictions * weight))) as evictions,
    sum(told.evicted_ns * weight) as evicted_ns,
    sum(told.recompute_ns * weight) as recompute_ns,
    sum(told.recompute_tokens * weight) as recompute_tokens,
    sum(told.extra_ns * weight) as extra_ns,
    if(hit_requests > 0, extra_ns / sumIf(told.e2e_ns * weight, hit), 0) as extra_ratio,
    if(
        hit_requests > 0, quantilesExactWeightedInterpolatedIf(0.5, 0.99)(told.extra_ns, whole_weight, hit)[1], null
    ) as extra_p50_ns,
    if(
        hit_requests > 0, quantilesExactWeightedInterpolatedIf(0.5, 0.99)(told.extra_ns, whole_weight, hit)[2], null
    ) as extra_p99_ns,
    if(hit_requests > 0, max(told.extra_ns), null) as extra_max_ns,
    quantilesExactWeightedInterpolated(0.5, 0.99)(told.e2e_ns, whole_weight)[1] as e2e_p50_ns,
    quantilesExactWeightedInterpolated(0.5, 0.99)(told.e2e_ns, whole_weight)[2] as e2e_p99_ns,
    if(
        countIf(not hit) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(told.e2e_ns, whole_weight, not hit)[1],
        null
    ) as others_e2e_p50_ns,
    if(
        countIf(not hit) > 0,
        quantilesExactWeightedInterpolatedIf(0.5, 0.99)(told.e2e_ns, whole_weight, not hit)[2],
        null
    ) as others_e2e_p99_ns,
    if(
        hit_requests > 0, quantilesExactWeightedInterpolatedIf(0.5, 0.99)(told.e2e_ns, whole_weight, hit)[1], null
    ) as hit_e2e_p50_ns,
    if(
        hit_requests > 0, quantilesExactWeightedInterpolatedIf(0.5, 0.99)(told.e2e_ns, whole_weight, hit)[2], null
    ) as hit_e2e_p99_ns,
    quantileExactWeightedInterpolated(0.99)(told.e2e_ns - told.extra_ns, whole_weight) as e2e_without_extra_p99_ns,
    if(hit_requests > 0, lower(hex(argMax(trace_id, told.extra_ns))), '') as worst_trace_id
from told
group by key
order by if({by:String} = 'minute', key, '') asc, extra_ns desc, key asc
limit {limit:UInt32}
