-- Purpose: what each part of the model is of the end-to-end time of requests, with the rest of that time named
-- A prefill or decode takes part in the engine's steps from its first to its last, whoever's tokens these compute. Its
-- wall time is split in three: between the steps, in the steps beside the device (`host`), and device time. The device
-- time of a step, at most the step itself (of steps that overlap, what is after the end of the one before), is divided
-- among the parts of the model as in the sampled steps of the same engine and phase. So the lines but `request` sum to
-- the end-to-end time. Requests and steps count with their weights: where steps were sampled, `between` takes up what
-- that changes. `what` is: part; unsampled (device time that no sampled step divides); host; untimed (steps without
-- device time); between; stage (one that runs no steps); unattributed (in no stage); request (the sum).
-- Requests that only an engine's own tracing reported are left out, as they name no steps.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; requests that began in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   by        String = 'kind'       a line for each: kind, layer, part (layer and kind)
--   quantile  Float64 = 0.99        requests from this quantile of end-to-end time on are the tail
-- Columns:
--   what              String           part of the model, or one of those below
--   stage             String           name of the stage; only of `stage`
--   layer             Nullable(Int16)  number of the decoder layer; NULL = outside of the layers, or by kind
--   kind              String           kind of layer; empty by layer and of what is no part
--   mean_ns           Float64          ns, mean over requests
--   share_ratio       Float64          share of the end-to-end time of all requests
--   prefill_mean_ns   Float64          ns, of the mean, in stage prefill
--   decode_mean_ns    Float64          ns, of the mean, in stage decode
--   tail_mean_ns      Float64          ns, mean over the tail
--   tail_share_ratio  Float64          share of the end-to-end time of the tail
--   request_count     UInt64           requests, weighted, rounded
--   kept_count        UInt64           requests that are stored and stand for them
--   tail_count        UInt64           of them, those of the tail, weighted, rounded
--   covered_ratio     Float64          steps that are stored, weighted / steps that prefills and decodes name
-- Tables: tailspan.layers, tailspan.spans, tailspan.steps
with
longest as (
    select toIntervalNanosecond(max(duration_ns)) as duration
    from tailspan.spans
    where
        role = 'request'
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
),

requests as (
    select
        anyIf(duration_ns, role = 'request') as e2e_ns,
        anyIf(spans.weight, role = 'request') as request_weight,
        anyIf(spans.whole_weight, role = 'request') as request_whole_weight,
        groupArrayIf(
            (
                toString(spans.stage),
                duration_ns,
                if(
                    spans.stage in ('prefill', 'decode') and engine_id != '' and last_step > 0,
                    cityHash64(service, instance, engine_id),
                    0
                ),
                first_step,
                last_step
            ),
            role = 'stage'
        ) as sent_stages,
        arrayPushBack(
            sent_stages,
            ('unattributed', e2e_ns - arraySum(part -> part.2, sent_stages), toUInt64(0), toInt64(0), toInt64(0))
        ) as stages
    from tailspan.spans
    where
        role in ('request', 'stage')
        -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
        and start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + (select duration from longest)
    group by trace_id, if(role = 'request', span_id, parent_span_id)
    having
        countIf(
            role = 'request'
            and start >= {since:DateTime64(9, 'UTC')}
            and start < {until:DateTime64(9, 'UTC')}
            and ({service:String} = '' or service = {service:String})
            and ({model:String} = '' or model = {model:String})
            and ({instance:String} = '' or instance = {instance:String})
        ) > 0
),

threshold as (
    select quantileExactWeightedInterpolated({quantile:Float64})(e2e_ns, request_whole_weight) as e2e_ns
    from requests
),

totals as (
    select
        sum(request_weight) as weight,
        sumIf(request_weight, e2e_ns >= (select e2e_ns from threshold)) as tail_weight,
        sum(e2e_ns * request_weight) as e2e_sum_ns,
        sumIf(e2e_ns * request_weight, e2e_ns >= (select e2e_ns from threshold)) as tail_e2e_sum_ns,
        toUInt64(round(weight)) as request_count,
        count() as kept_count,
        toUInt64(round(tail_weight)) as tail_count
    from requests
),

entries as (
    select
        request_weight as weight,
        e2e_ns >= (select e2e_ns from threshold) as is_tail,
        entry.1 as stage,
        entry.2 as wall_ns,
        entry.3 as engine,
        entry.4 as first_step,
        entry.5 as last_step
    from requests
    array join stages as entry
),

-- The steps of these engines, each with its cost and its device time.
timed as (
    select
        cityHash64(service, instance, engine_id) as engine,
        step,
        weight,
        toUnixTimestamp64Nano(start) as begin_ns,
        begin_ns + wall_ns as end_ns,
        lagInFrame(end_ns, 1, begin_ns) over (
            partition by engine order by step asc rows between 1 preceding and current row
        ) as previous_end_ns,
        greatest(end_ns - greatest(begin_ns, previous_end_ns), 0) as cost_ns,
        device_busy_ns >= 0 as has_busy,
        if(has_busy, least(device_busy_ns, cost_ns), 0) as device_ns,
        prefill_tokens > 0 as prefills
    from tailspan.steps
    where
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + (select duration from longest)
        and cityHash64(service, instance, engine_id) in (select engine from entries)
),

-- Sums over the steps of an engine up to each of them: a range of steps is a difference of two.
sums as (
    select
        engine,
        step,
        sum(weight) over up_to_here as steps,
        sum(weight * timed.cost_ns) over up_to_here as cost_ns,
        sum(weight * timed.cost_ns * (not has_busy)) over up_to_here as untimed_ns,
        sum(weight * device_ns * prefills) over up_to_here as prefill_ns,
        sum(weight * device_ns * (not prefills)) over up_to_here as decode_ns
    from timed
    window up_to_here as (partition by engine order by step asc)
),

bounds as (
    select
        *,
        bound.1 as step,
        bound.2 as sign
    from entries
    array join [(first_step - 1, -1), (last_step, 1)] as bound
    where engine != 0
),

-- For each engine, stage and tail or not: time between steps, and in them beside the device, untimed, by phase.
split as (
    select
        bounds.engine as engine,
        bounds.stage as stage,
        bounds.is_tail as is_tail,
        sumIf(bounds.wall_ns * bounds.weight, bounds.sign > 0) as wall_ns,
        sum(bounds.step * bounds.weight * bounds.sign) as named_steps,
        sum(sums.steps * bounds.weight * bounds.sign) as steps,
        sum(sums.cost_ns * bounds.weight * bounds.sign) as cost_ns,
        sum(sums.untimed_ns * bounds.weight * bounds.sign) as untimed_ns,
        sum(sums.prefill_ns * bounds.weight * bounds.sign) as prefill_ns,
        sum(sums.decode_ns * bounds.weight * bounds.sign) as decode_ns
    from bounds
    asof left join sums on bounds.engine = sums.engine and bounds.step >= sums.step
    group by engine, stage, is_tail
),

device as (
    select
        engine,
        stage,
        is_tail,
        entry.1 as phase,
        entry.2 as ns
    from split
    array join [('prefill', prefill_ns), ('decode', decode_ns)] as entry
),

-- What each part is of the device time of an engine's sampled steps of a phase.
parts as (
    select
        cityHash64(service, instance, engine_id) as engine,
        toString(layers.phase) as phase,
        if({by:String} = 'kind' or layers.layer < 0, null, layers.layer) as layer,
        if({by:String} = 'layer', '', toString(layers.kind)) as kind,
        sum(layers.ns * steps) as ns,
        ns / nullIf(sum(ns) over (partition by engine, phase), 0) as ratio
    from tailspan.layers
    where
        start >= {since:DateTime64(9, 'UTC')} - toIntervalMinute(1)
        and start < {until:DateTime64(9, 'UTC')} + (select duration from longest)
        and cityHash64(service, instance, engine_id) in (select engine from entries)
    group by engine, phase, layer, kind
),

found as (
    select
        if(isNull(parts.ratio), 'unsampled', 'part') as what,
        device.stage as stage,
        parts.layer as layer,
        parts.kind as kind,
        device.is_tail as is_tail,
        device.ns * coalesce(parts.ratio, 1) as ns
    from device
    left join parts on device.engine = parts.engine and device.phase = parts.phase
    union all
    select
        rest.1 as what,
        stage,
        null as layer,
        '' as kind,
        is_tail,
        rest.2 as ns
    from split
    array join
        [
            ('host', cost_ns - untimed_ns - prefill_ns - decode_ns),
            ('untimed', untimed_ns),
            ('between', wall_ns - cost_ns)
        ] as rest
    union all
    select
        if(stage = 'unattributed', 'unattributed', 'stage') as what,
        stage,
        null as layer,
        '' as kind,
        is_tail,
        wall_ns * weight as ns
    from entries
    where engine = 0
    union all
    select
        'request' as what,
        stage,
        null as layer,
        '' as kind,
        is_tail,
        wall_ns * weight as ns
    from entries
)

select
    found.what as what,
    if(found.what = 'stage', found.stage, '') as stage,
    found.layer as layer,
    found.kind as kind,
    sum(found.ns) / any(totals.weight) as mean_ns,
    sum(found.ns) / any(totals.e2e_sum_ns) as share_ratio,
    sumIf(found.ns, found.stage = 'prefill') / any(totals.weight) as prefill_mean_ns,
    sumIf(found.ns, found.stage = 'decode') / any(totals.weight) as decode_mean_ns,
    sumIf(found.ns, is_tail) / any(totals.tail_weight) as tail_mean_ns,
    sumIf(found.ns, is_tail) / any(totals.tail_e2e_sum_ns) as tail_share_ratio,
    any(totals.request_count) as request_count,
    any(totals.kept_count) as kept_count,
    any(totals.tail_count) as tail_count,
    coalesce((select sum(steps) / nullIf(sum(named_steps), 0) from split), 1) as covered_ratio
from found
cross join totals
group by what, stage, layer, kind
having sum(found.ns) != 0 or what = 'request'
order by
    indexOf(['part', 'unsampled', 'host', 'untimed', 'between', 'stage', 'unattributed', 'request'], what) asc,
    mean_ns desc,
    layer asc,
    kind asc,
    stage asc
