create materialized view if not exists tailspan.layers_mv to tailspan.layers as
-- In an ArrayValue a double is 0a 09 21 and 8 bytes, little-endian; a short string is 0a, its length + 2, 0a, its
-- length, its text. A step whose arrays are not exactly that, do not fit together, name a part twice or hold what is no
-- time is left out: it must not fail the insert, which has spans of others.
with
    read as (
        select
            *,
            substring(times, 7) as doubles,
            intDiv(length(doubles), 11) as amount,
            arrayMap(n -> reinterpretAsFloat64(substring(doubles, 11 * n + 4, 8)), range(least(amount, 10000)))
                as part_ns,
            extractAll(parts, '(?s)\\x0a.\\x0a.([a-z_0-9/]*)') as names,
            attributes_string['tailspan.layers.phase'] as sent_phase
        from tailspan.layer_steps
    ),

    checked as (
        select *
        from read
        where
            startsWith(times, 'array:')
            and amount > 0
            and length(names) = amount
            and length(part_ns) = amount
            and length(arrayDistinct(names)) = amount
            and arrayAll(n -> substring(doubles, 11 * n + 1, 3) = '\n\t!', range(length(part_ns)))
            and length(doubles) = 11 * amount
            and parts
            = concat(
                'array:',
                arrayStringConcat(
                    arrayMap(name -> concat('\n', char(length(name) + 2), '\n', char(length(name)), name), names)
                )
            )
            and arrayAll(name -> length(name) < 64 and match(name, '^((0|[1-9][0-9]{0,3})/)?[a-z][a-z_0-9]*$'), names)
            and arrayAll(ns -> ns >= 0 and ns < 1e15, part_ns)
    )

select
    trace_id,
    span_id,
    service,
    instance,
    model,
    engine_id,
    step,
    start,
    if(
        sent_phase in ('prefill', 'decode'),
        sent_phase,
        if(attributes_int['tailspan.step.prefill_tokens'] > 0, 'prefill', 'decode')
    ) as phase,
    if(part.1 like '%/%', toInt16OrZero(splitByChar('/', part.1)[1]), -1) as layer,
    splitByChar('/', part.1)[-1] as kind,
    part.2 as ns,
    arraySum(part_ns) as step_ns,
    attributes_int['tailspan.step.prefill_tokens'] as prefill_tokens,
    attributes_int['tailspan.step.decode_tokens'] as decode_tokens,
    attributes_int['tailspan.step.requests'] as requests,
    attributes_string['tailspan.layers.mode'] as mode,
    attributes_string['tailspan.device'] as device,
    least(greatest(attributes_int['tailspan.layers.steps'], 1), 1000000) * least(weight, 1e9) as steps,
    attributes_int['tailspan.layers.cost_ns'] as cost_ns
from checked
array join arrayZip(names, part_ns) as part
