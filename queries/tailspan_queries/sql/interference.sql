-- Purpose: how much the prefills of other requests slowed decodes, and ITL in steps with and without prefill
-- A decode takes part in the steps from its first to its last; those that also computed prompt tokens are `mixed`. What
-- a mixed step cost beyond the median step of the same engine, window and batch size without prefill is `extra`.
-- Assumption: without the prefill the step would have cost that median; so a pause that falls into a mixed step counts
-- as extra, and differences in context length between the steps average out. A step that computed only prompts held all
-- of its decodes up, so all of it is extra. Batch size is decode tokens: exact to 8, beyond within 9 %; a size without
-- a step to compare takes the next smaller one. Cost is the time from the later of a step's begin and the end of the
-- step before it to its end, so steps that overlap (async scheduling) do not count twice. Steps of the request's own
-- prefill come before its decode and do not count. Steps and decodes count with their weights: where steps were
-- sampled, sums over many requests are unbiased, and what is said of a single request is a guess.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; decodes that began in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   by        String = 'model'      a line for each: model, instance, engine, minute, request; all = one line
--   limit     UInt32 = 1440         lines
-- Columns:
--   key                 String             model that the engine runs, instance, engine id, minute (UTC) or trace id
--   requests            UInt64             requests that decoded, weighted, rounded
--   kept_count          UInt64             requests that are stored and stand for them
--   tokens              Int64              decode steps of these requests, each a token without speculative decoding
--   decode_ns           Float64            ns, sum of their decode times
--   mixed_ns            Float64            ns, of it in mixed steps
--   mixed_ratio         Float64            mixed time / decode time
--   prefill_tokens      Float64            prompt tokens of others computed during a decode, mean over requests
--   extra_ns            Nullable(Float64)  ns, sum of extra; NULL where no engine made a step without prefill
--   extra_ratio         Nullable(Float64)  extra / decode time
--   extra_per_token_ns  Nullable(Float64)  ns, extra / tokens
--   extra_p50_ns        Nullable(Float64)  ns, percentile over requests of a request's extra, interpolated
--   extra_p95_ns        Nullable(Float64)  ns
--   extra_p99_ns        Nullable(Float64)  ns
--   extra_max_ns        Nullable(Float64)  ns
--   covered_ratio       Float64            time of the stored steps and the idle time between them / decode time
--   mixed_steps         UInt64             mixed steps with decodes, weighted, rounded; 0 by request, as all below
--   pure_steps          UInt64             steps that only decoded, weighted, rounded
--   mixed_itl_p50_ns    Nullable(Float64)  ns, ITL over the tokens of mixed steps: step and idle time before it
--   mixed_itl_p95_ns    Nullable(Float64)  ns
--   mixed_itl_p99_ns    Nullable(Float64)  ns
--   pure_itl_p50_ns     Nullable(Float64)  ns, ITL over the tokens of steps that only decoded
--   pure_itl_p95_ns     Nullable(Float64)  ns
--   pure_itl_p99_ns     Nullable(Float64)  ns
--   worst_trace_id      String             trace of the request with the largest extra; empty if no extra is known
-- Tables: tailspan.spans, tailspan.steps
with
decodes as (
    select
        trace_id,
        parent_span_id as request_span_id,
        cityHash64(service, instance, engine_id) as engine,
        instance,
        engine_id,
        model,
        start,
        duration_ns as wall_ns,
        first_step,
        last_step,
        weight,
        whole_weight
    from tailspan.spans
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
        and role = 'stage'
        and stage = 'decode'
        and engine_id != ''
        and last_step > 0
),

-- The steps of these decodes, each with its cost; `size` is the class of its batch size.
timed as (
    select
        cityHash64(service, instance, engine_id) as engine,
        instance,
        engine_id,
        model,
        step,
        start,
        weight,
        whole_weight,
        idle_ns,
        prefill_tokens,
        decode_tokens,
        toUnixTimestamp64Nano(start) as begin_ns,
        begin_ns + wall_ns as end_ns,
        lagInFrame(end_ns, 1, begin_ns) over (
            partition by engine order by step asc rows between 1 preceding and current row
        ) as previous_end_ns,
        greatest(end_ns - greatest(begin_ns, previous_end_ns), 0) as cost_ns,
        toInt32(round(4 * log2(greatest(decode_tokens, 1)))) as size
    from tailspan.steps
    where
        -- A minute of grace for clocks that were set meanwhile.
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + toIntervalNanosecond((select max(wall_ns) from decodes))
        and cityHash64(service, instance, engine_id) in (select engine from decodes)
),

medians as (
    select
        engine,
        size,
        quantileExactWeightedInterpolated(0.5)(cost_ns, whole_weight) as median_ns
    from timed
    where prefill_tokens = 0 and decode_tokens > 0
    group by engine, size
),

baselines as (
    select
        engine,
        arraySort(groupArray((size, median_ns))) as by_size
    from medians
    group by engine
),

-- Sums over the steps of an engine up to each of them: a range of steps is a difference of two.
sums as (
    select
        timed.engine as engine,
        timed.step as step,
        timed.model as model,
        timed.prefill_tokens > 0 as mixed,
        -- Position of the largest size that is not larger, or else the smallest.
        greatest(arrayLastIndex(pair -> pair.1 <= timed.size, baselines.by_size), 1) as place,
        if(timed.decode_tokens > 0, baselines.by_size[place].2, 0) as pure_ns,
        sum(timed.weight * (timed.cost_ns + timed.idle_ns)) over up_to_here as covered_ns,
        sum(timed.weight * timed.cost_ns * mixed) over up_to_here as mixed_ns,
        sum(timed.weight * timed.prefill_tokens) over up_to_here as prefill_tokens,
        sum(timed.weight * (timed.cost_ns - pure_ns) * mixed) over up_to_here as extra_ns,
        sum(mixed and timed.decode_tokens > 0 and empty(baselines.by_size)) over up_to_here as unknown
    from timed
    left join baselines on timed.engine = baselines.engine
    window up_to_here as (partition by timed.engine order by timed.step asc)
),

bounds as (
    select
        *,
        bound.1 as step,
        bound.2 as sign
    from decodes
    array join [(first_step - 1, -1), (last_step, 1)] as bound
),

requests as (
    select
        bounds.trace_id as trace_id,
        multiIf(
            -- A decode before the first stored step of its engine finds none.
            {by:String} = 'model', toString(if(max(sums.model) != '', max(sums.model), any(bounds.model))),
            {by:String} = 'instance', toString(any(bounds.instance)),
            {by:String} = 'engine', toString(any(bounds.engine_id)),
            {by:String} = 'minute', formatDateTime(min(bounds.start), '%F %R', 'UTC'),
            {by:String} = 'request', lower(hex(bounds.trace_id)),
            'all'
        ) as key,
        any(bounds.weight) as weight,
        any(bounds.whole_weight) as whole_weight,
        sumIf(bounds.wall_ns, bounds.sign > 0) as decode_ns,
        sum(bounds.step * bounds.sign) as tokens,
        sum(sums.covered_ns * bounds.sign) as covered_ns,
        sum(sums.mixed_ns * bounds.sign) as mixed_ns,
        sum(sums.prefill_tokens * bounds.sign) as prefill_tokens,
        if(sum(sums.unknown * bounds.sign) = 0, sum(sums.extra_ns * bounds.sign), null) as extra_ns
    from bounds
    asof left join sums on bounds.engine = sums.engine and bounds.step >= sums.step
    group by bounds.trace_id, bounds.request_span_id
),

grouped as (
    select
        key,
        toUInt64(round(sum(weight))) as requests,
        count() as kept_count,
        toInt64(round(sum(requests.tokens * weight))) as tokens,
        sum(requests.decode_ns * weight) as decode_ns,
        sum(requests.mixed_ns * weight) as mixed_ns,
        avgWeighted(requests.prefill_tokens, weight) as prefill_tokens,
        sum(requests.covered_ns * weight) / decode_ns as covered_ratio,
        sum(requests.extra_ns * weight) as extra_ns,
        sumIf(requests.decode_ns * weight, isNotNull(requests.extra_ns)) as known_ns,
        sumIf(requests.tokens * weight, isNotNull(requests.extra_ns)) as known_tokens,
        quantilesExactWeightedInterpolated(0.5, 0.95, 0.99)(requests.extra_ns, whole_weight) as extra_q,
        max(requests.extra_ns) as extra_max_ns,
        coalesce(lower(hex(argMax(trace_id, requests.extra_ns))), '') as worst_trace_id
    from requests
    group by key
),

-- A token's gap is the step that sampled it and the idle time before.
gaps as (
    select
        multiIf(
            {by:String} = 'model', toString(model),
            {by:String} = 'instance', toString(instance),
            {by:String} = 'engine', toString(engine_id),
            {by:String} = 'minute', formatDateTime(start, '%F %R', 'UTC'),
            'all'
        ) as key,
        toUInt64(round(sumIf(weight, prefill_tokens > 0))) as mixed_steps,
        toUInt64(round(sumIf(weight, prefill_tokens = 0))) as pure_steps,
        quantilesExactWeightedInterpolatedIf(0.5, 0.95, 0.99)(
            cost_ns + idle_ns, toUInt64(round(weight * decode_tokens)), prefill_tokens > 0
        ) as mixed_q,
        quantilesExactWeightedInterpolatedIf(0.5, 0.95, 0.99)(
            cost_ns + idle_ns, toUInt64(round(weight * decode_tokens)), prefill_tokens = 0
        ) as pure_q
    from timed
    where
        {by:String} != 'request'
        and decode_tokens > 0
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
    group by key
)

select
    grouped.key as key,
    grouped.requests as requests,
    grouped.kept_count as kept_count,
    grouped.tokens as tokens,
    grouped.decode_ns as decode_ns,
    grouped.mixed_ns as mixed_ns,
    if(grouped.decode_ns > 0, grouped.mixed_ns / grouped.decode_ns, 0) as mixed_ratio,
    grouped.prefill_tokens as prefill_tokens,
    grouped.extra_ns as extra_ns,
    if(grouped.known_ns > 0, grouped.extra_ns / grouped.known_ns, null) as extra_ratio,
    if(grouped.known_tokens > 0, grouped.extra_ns / grouped.known_tokens, null) as extra_per_token_ns,
    if(isNull(grouped.extra_ns), null, grouped.extra_q[1]) as extra_p50_ns,
    if(isNull(grouped.extra_ns), null, grouped.extra_q[2]) as extra_p95_ns,
    if(isNull(grouped.extra_ns), null, grouped.extra_q[3]) as extra_p99_ns,
    grouped.extra_max_ns as extra_max_ns,
    grouped.covered_ratio as covered_ratio,
    gaps.mixed_steps as mixed_steps,
    gaps.pure_steps as pure_steps,
    if(gaps.mixed_steps > 0, gaps.mixed_q[1], null) as mixed_itl_p50_ns,
    if(gaps.mixed_steps > 0, gaps.mixed_q[2], null) as mixed_itl_p95_ns,
    if(gaps.mixed_steps > 0, gaps.mixed_q[3], null) as mixed_itl_p99_ns,
    if(gaps.pure_steps > 0, gaps.pure_q[1], null) as pure_itl_p50_ns,
    if(gaps.pure_steps > 0, gaps.pure_q[2], null) as pure_itl_p95_ns,
    if(gaps.pure_steps > 0, gaps.pure_q[3], null) as pure_itl_p99_ns,
    grouped.worst_trace_id as worst_trace_id
from grouped
left join gaps on grouped.key = gaps.key
order by if({by:String} = 'minute', key, '') asc, extra_ns desc, key asc
limit {limit:UInt32}
