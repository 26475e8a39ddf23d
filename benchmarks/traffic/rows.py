"""From records of requests to what the collector would have stored: SQL for an embedded ClickHouse with our schema.

`made.requests` and `made.workers` hold the records; inserts into `tailspan.spans` make the spans of requests and of
engine steps out of them, and the schema's own views fill `stage_minutes`, `traces` and `layers`. Ids are like the
agent's (docs/adr/0012). Of an engine's steps, one every `STEP_NS`, each stored one stands for `step_weight`; every
`LAYER_EVERY`th stored step has the times of the model's parts.
"""

from __future__ import annotations

from benchmarks.traffic.requests import BEGIN_NS, COLUMNS, OUTCOMES
from tailspan import attributes as attr

STEP_NS = 25_000_000
LAYER_EVERY = 100
LAYERS = 16
TENANT = "app.tenant"
"""An attribute that the host's code sets; any other name would do."""
_FIELDS = ",\n    ".join(f"{name} {kind}" for name, _, kind in COLUMNS)
REQUESTS_TABLE = f"""
create table made.requests
(
    {_FIELDS}
)
engine = MergeTree order by start_ns"""
WORKERS_TABLE = """
create table made.workers
(
    worker UInt16,
    service LowCardinality(String),
    instance LowCardinality(String),
    model LowCardinality(String),
    engine_id LowCardinality(String),
    lora LowCardinality(String),
    resource LowCardinality(String)
)
engine = MergeTree order by worker"""
LOAD_TABLE = """
create table made.load engine = MergeTree order by (worker, minute) as
select worker, intDiv(start_ns, 60000000000) as minute, count() as arrivals, sum(input_tokens) as input_tokens,
       sum(decode_ns + resumed_ns + prefill_ns) / 60e9 as running, sum(queue_ns) / 60e9 as waiting
from made.requests group by worker, minute"""
_SCOPE = "'tailspan' as scope_name, '0.1.0' as scope_version, '[]' as scope"
_STAGES = ", ".join(
    f"({number}, '{stage}', {wall}, {busy}, toInt64({gpu}))"
    for number, (stage, wall, busy, gpu) in enumerate(
        (
            ("receive", "receive_ns", "intDiv(receive_ns, 2)", "-1"),
            ("tokenize", "tokenize_ns", "intDiv(tokenize_ns * 9, 10)", "-1"),
            ("dispatch", "dispatch_ns", "intDiv(dispatch_ns, 3)", "-1"),
            ("queue", "queue_ns", "0", "-1"),
            ("prefill", "prefill_ns", "intDiv(prefill_ns * 19, 20)", "intDiv(prefill_ns * 9, 10)"),
            ("decode", "decode_ns", "intDiv(decode_ns * 19, 20)", "intDiv(decode_ns * 17, 20)"),
            ("preempted", "preempted_ns", "0", "-1"),
            ("decode", "resumed_ns", "intDiv(resumed_ns * 19, 20)", "intDiv(resumed_ns * 17, 20)"),
            ("detokenize", "detokenize_ns", "detokenize_ns + output_tokens * 30000", "-1"),
            ("respond", "respond_ns", "intDiv(respond_ns, 2)", "-1"),
        ),
        start=1,
    )
)
_OUTCOMES = ", ".join(f"'{outcome}'" for outcome in OUTCOMES)


def request_spans(begin_ns: int, end_ns: int, since_ns: int) -> str:
    """Return the insert of the spans of all requests that arrive in a window; from `since_ns` on a newer version."""
    return f"""
insert into tailspan.spans
    (trace_id, span_id, parent_span_id, flags, service, instance, name, kind, start, duration_ns, status_code,
     status_message, role, stage, model, request_id, engine_id, first_step, last_step, input_tokens, output_tokens,
     busy_ns, gpu_ns, unattributed_ns, ttft_ns, attributes_string, attributes_int, attributes_double, attributes_bool,
     resource, scope_name, scope_version, scope)
with
    -- A log-bucket histogram of gaps: most near the mean, a tenth above, one of a hundred a stall.
    (gap_ns, gaps) -> arrayStringConcat(arrayMap(
        part -> concat(toString(toInt64(ceil(log2(greatest(gap_ns, 2)) * 32)) + part.1), ':', toString(part.2)),
        arrayFilter(part -> part.2 > 0, [(-4, gaps - intDiv(gaps, 10) - intDiv(gaps, 100)),
                                         (11, intDiv(gaps, 10)), (52, intDiv(gaps, 100))])
    ), ' ') as histogram
select
    trace_id,
    toFixedString(concat(substring(key, 1, 7), char(if(k = 0, 255, k))), 8) as span_id,
    toFixedString(if(k = 0, '', concat(substring(key, 1, 7), char(255))), 8) as parent_span_id,
    257 as flags,
    service, instance,
    if(k = 0, 'POST /v1/chat/completions', part.2) as name,
    if(k = 0, 2, 1) as kind,
    fromUnixTimestamp64Nano(toInt64(start_ns + if(k = 0, 0, offsets[k]) + (k = 10) * gap_ns), 'UTC') as start,
    toInt64(part.3) as duration_ns,
    if((k = 0 or k = 10) and outcome > 0, 2, 0) as status_code,
    if((k = 0 or k = 10) and outcome > 0, [{_OUTCOMES}][outcome + 1], '') as status_message,
    if(k = 0, 'request', 'stage') as role,
    part.2 as stage,
    model,
    if(k = 0, concat('chatcmpl-', lower(hex(trace_id))), '') as request_id,
    if(k in (0, 5, 6, 8), engine_id, '') as engine_id,
    if(k in (5, 6, 8), intDiv(start_ns + offsets[k] - {BEGIN_NS}, {STEP_NS}) + 1, 0) as first_step,
    if(k in (5, 6, 8), intDiv(start_ns + offsets[k] + part.3 - {BEGIN_NS}, {STEP_NS}) + 1, 0) as last_step,
    if(k in (0, 5), requests.input_tokens, 0) as input_tokens,
    if(k in (0, 6, 8), requests.output_tokens, 0) as output_tokens,
    toInt64(part.4) as busy_ns,
    part.5 as gpu_ns,
    if(k = 0, gap_ns, 0) as unattributed_ns,
    if(k = 0 and requests.output_tokens > 0, offsets[6] + 300000, 0) as ttft_ns,
    multiIf(
        k = 0,
        mapFilter((name, value) -> value != '', map(
            '{attr.HTTP_METHOD}', 'POST', '{attr.HTTP_ROUTE}', '/v1/chat/completions',
            '{attr.URL_PATH}', '/v1/chat/completions', '{attr.GEN_AI_OPERATION}', 'chat',
            '{attr.OUTCOME}', [{_OUTCOMES}][outcome + 1], '{attr.ENGINE_NAME}', 'vllm',
            '{attr.ERROR_TYPE}', if(outcome = 1, '500', ''), '{attr.LORA}', if(tenant = 2, toString(lora), ''),
            '{TENANT}', concat('tenant-', toString(tenant)))),
        (k = 8 or (k = 6 and resumed_ns = 0)) and requests.output_tokens > 1,
        map('{attr.ITL_HISTOGRAM}',
            histogram(intDiv(decode_ns + resumed_ns, gaps), gaps)),
        map()
    ) as attributes_string,
    multiIf(
        k = 0,
        mapFilter((name, value) -> value != 0, map(
            '{attr.HTTP_STATUS}', toInt64([200, 500, 499][outcome + 1]), '{attr.PRIORITY}', toInt64(priority))),
        k = 5,
        mapFilter((name, value) -> value != 0, map(
            '{attr.PREFILL_CHUNKS}', toInt64(1 + intDiv(requests.input_tokens - cached_tokens, 8192)),
            '{attr.CACHED_TOKENS}', toInt64(cached_tokens))),
        map()
    ) as attributes_int,
    if(k = 0,
       mapFilter((name, value) -> value != 0, map(
           '{attr.GEN_AI_LATENCY_E2E}', part.3 / 1e9, '{attr.GEN_AI_LATENCY_QUEUE}', queue_ns / 1e9,
           '{attr.GEN_AI_LATENCY_TTFT}', if(requests.output_tokens > 0, (offsets[6] + 300000) / 1e9, 0))),
       map()) as attributes_double,
    if(k = 0, map('{attr.GEN_AI_STREAM}', tenant != 1), map()) as attributes_bool,
    if(start_ns < {since_ns}, resource, replace(resource, 'string:1.4.0', 'string:1.5.0')) as resource,
    {_SCOPE}
from (
    select
        *,
        sipHash128(start_ns, requests.worker, input_tokens, receive_ns) as trace_id,
        reinterpretAsFixedString(sipHash64(trace_id)) as key,
        [{_STAGES}] as stages,
        greatest(requests.output_tokens, 2) - 1 as gaps,
        arrayPushFront(arrayCumSum(stage -> stage.3, stages), 0) as offsets,
        arrayPushFront(
            arrayFilter(stage -> stage.3 > 0, stages),
            (0, '', offsets[11] + gap_ns, arraySum(stage -> stage.4, stages), if(prefill_ns > 0,
             toInt64(intDiv(prefill_ns * 9, 10) + intDiv((decode_ns + resumed_ns) * 17, 20)), toInt64(-1)))
        ) as parts
    from made.requests
    where start_ns >= {begin_ns} and start_ns < {end_ns}
) as requests
inner join made.workers on workers.worker = requests.worker
array join parts as part, arrayMap(part -> toUInt8(part.1), parts) as k"""


def step_spans(begin_ns: int, end_ns: int, weight: int, since_ns: int) -> str:
    """Return the insert of the stored engine steps of a window, each of which stands for `weight`."""
    first = (begin_ns - BEGIN_NS) // (STEP_NS * weight)
    last = (end_ns - BEGIN_NS) // (STEP_NS * weight)
    kinds = ("attention", "mlp", "norm")
    names = ["embedding", *(f"{layer}/{kind}" for layer in range(LAYERS) for kind in kinds), "lm_head", "sampler"]
    shares = [0.01, *(share for _ in range(LAYERS) for share in (0.02, 0.033, 0.003)), 0.06, 0.02]
    parts = "array:" + "".join(f"\\n{_char(len(name) + 2)}\\n{_char(len(name))}{name}" for name in names)
    return f"""
insert into tailspan.spans
    (trace_id, span_id, service, instance, name, kind, start, duration_ns, role, model, engine_id, step, gpu_ns, weight,
     attributes_string, attributes_int, attributes_double, attributes_other, resource, scope_name, scope_version, scope)
select
    toFixedString(concat(substring(hashed, 1, 5), reverse(reinterpretAsFixedString(toUInt32(step))),
                         substring(reinterpretAsFixedString(sipHash64(step, worker)), 1, 7)), 16) as trace_id,
    toFixedString(concat(substring(hashed, 2, 4), reverse(reinterpretAsFixedString(toUInt32(step)))), 8) as span_id,
    service, instance, 'step' as name, 1 as kind,
    fromUnixTimestamp64Nano(toInt64({BEGIN_NS} + (step - 1) * {STEP_NS}), 'UTC') as start,
    toInt64({STEP_NS} * (0.55 + 0.4 * noise)) as duration_ns,
    'step' as role, model, engine_id, step,
    intDiv(duration_ns * 9, 10) as gpu_ns,
    {weight} as weight,
    if(is_layered,
       map('{attr.DEVICE}', 'cuda', '{attr.LAYERS_PHASE}', if(prefill_tokens > 0, 'prefill', 'decode'),
           '{attr.LAYERS_MODE}', 'eager'),
       map('{attr.DEVICE}', 'cuda')) as attributes_string,
    mapConcat(
        map('{attr.STEP_REQUESTS}', batch, '{attr.STEP_PREFILL_TOKENS}', prefill_tokens,
            '{attr.STEP_DECODE_TOKENS}', batch, '{attr.STEP_WAITING}', toInt64(waiting),
            '{attr.STEP_IDLE_NS}', {STEP_NS} - duration_ns, '{attr.DEVICE_BUSY_NS}', gpu_ns,
            '{attr.DEVICE_IDLE_NS}', {STEP_NS} - gpu_ns, '{attr.DEVICE_LAUNCH_NS}', intDiv(gpu_ns, 3)),
        if(is_layered, map('{attr.LAYERS_STEPS}', toInt64({LAYER_EVERY}), '{attr.LAYERS_COST_NS}', 40000), map())
    ) as attributes_int,
    map('{attr.STEP_KV_USAGE}', least(batch / 80, 1)) as attributes_double,
    if(is_layered,
       map('{attr.LAYERS_PARTS}', '{parts}',
           '{attr.LAYERS_NS}', concat('array:', arrayStringConcat(arrayMap(
               (share, n) -> concat('\\n\\t!', reinterpretAsFixedString(
                   gpu_ns * share * (0.9 + (cityHash64(step, worker, n) % 1000) / 5000.))),
               {shares}, range({len(shares)}))))),
       map()) as attributes_other,
    if(step_minute * 60000000000 < {since_ns}, resource, replace(resource, 'string:1.4.0', 'string:1.5.0'))
        as resource,
    {_SCOPE}
from (
    select
        workers.worker as worker, service, instance, model, engine_id, resource,
        reinterpretAsFixedString(sipHash64(engine_id)) as hashed,
        toInt64(number * {weight} + cityHash64(number, workers.worker) % {weight} + 1) as step,
        (cityHash64(number, workers.worker, 3) % 10000) / 10000. as noise,
        cityHash64(number, workers.worker, 4) % {LAYER_EVERY} = 0 as is_layered,
        intDiv({BEGIN_NS} + (step - 1) * {STEP_NS}, 60000000000) as step_minute
    from numbers({first}, {last - first}) as numbers
    cross join made.workers
) as planned
inner join (
    select
        worker as load_worker, minute, waiting,
        toInt64(greatest(1, round(running))) as batch,
        toInt64(arrivals * {STEP_NS} / 60e9 * 1000) as joins,
        intDiv(input_tokens, arrivals) as mean_prompt
    from made.load
) as loads on loads.load_worker = planned.worker and loads.minute = planned.step_minute
array join [if(noise * 1000 < joins, toInt64(mean_prompt), toInt64(0))] as prefill_tokens"""


def _char(number: int) -> str:
    return f"\\x{number:02x}"
