-- Purpose: engine steps with their device times and the layers of the sampled ones, for a trace viewer, page by page
-- A page follows the step `after_span`, which began at `after_ns`.
-- Parameters:
--   since       DateTime64(9, 'UTC')  begin of the window, inclusive
--   until       DateTime64(9, 'UTC')  end of the window, exclusive
--   service     String = ''           service.name; empty = all
--   model       String = ''           gen_ai.request.model; empty = all
--   instance    String = ''           service.instance.id; empty = all
--   engine_id   String = ''           engine instance; empty = all
--   first_step  Int64 = 0             this step and later ones
--   last_step   Int64 = 0             this step and earlier ones; 0 = any
--   after_ns    Int64 = 0             ns since the epoch: begin of the last step of the page before
--   after_span  String = ''           16 hex digits: span of the last step of the page before
--   limit       UInt32 = 2000         steps to list, the earliest
-- Columns:
--   span_id         String                         16 hex digits
--   service         LowCardinality(String)         service.name
--   instance        LowCardinality(String)         service.instance.id
--   model           LowCardinality(String)         gen_ai.request.model
--   engine_id       LowCardinality(String)         engine instance
--   step            Int64                          number of the step within its engine
--   start_ns        Int64                          ns since the epoch
--   wall_ns         Int64                          ns, wall time
--   idle_ns         Int64                          ns since the previous step ended while requests were there
--   execute_ns      Nullable(Int64)                ns of host time for inputs and forward pass; NULL if not told
--   sample_ns       Nullable(Int64)                ns of host time for sampling; NULL if not told
--   requests        Int64                          requests in the batch
--   prefill_tokens  Int64                          prompt tokens computed
--   decode_tokens   Int64                          decode tokens computed
--   waiting         Int64                          requests that waited for the scheduler
--   preempted       Int64                          requests evicted
--   kv_usage_ratio  Nullable(Float64)              share of the KV cache in use, 0 to 1; NULL if not told
--   weight          Float64                        how many steps it stands for; 1 unless sampled
--   status_code     Int8                           OTLP status: 0 unset, 1 ok, 2 error
--   device          LowCardinality(String)         clock of the device times: cuda, rocm, cpu; empty = not measured
--   busy_ns         Nullable(Int64)                ns of device time; NULL if not measured
--   device_idle_ns  Nullable(Int64)                ns that the device was idle before the step; NULL if not known
--   launch_ns       Nullable(Int64)                ns of host time to launch the forward pass; NULL if not known
--   begin_ns        Nullable(Int64)                ns since the epoch: when the device began; NULL if not known
--   uncertainty_ns  Nullable(Int64)                ns that begin_ns can be off, to either side; NULL if not known
--   parts           Array(LowCardinality(String))  parts of the model in a sampled step: KIND or LAYER/KIND
--   parts_ns        Array(Float64)                 ns of device time of each part
--   layers_steps    Int64                          steps that a sampled step stands for
--   layers_mode     LowCardinality(String)         eager or graph: how the parts were timed
-- Tables: tailspan.spans
with
-- An attribute of type array: `array:`, then the raw protobuf. A double takes 11 bytes, the number in the last 8.
attributes_other['tailspan.layers.parts'] as sent_parts,
attributes_other['tailspan.layers.ns'] as sent_ns

select
    lower(hex(spans.span_id)) as span_id,
    service,
    instance,
    model,
    engine_id,
    step,
    toUnixTimestamp64Nano(start) as start_ns,
    duration_ns as wall_ns,
    attributes_int['tailspan.step.idle_ns'] as idle_ns,
    if(mapContains(attributes_int, 'tailspan.step.execute_ns'), attributes_int['tailspan.step.execute_ns'], null)
        as execute_ns,
    if(mapContains(attributes_int, 'tailspan.step.sample_ns'), attributes_int['tailspan.step.sample_ns'], null)
        as sample_ns,
    attributes_int['tailspan.step.requests'] as requests,
    attributes_int['tailspan.step.prefill_tokens'] as prefill_tokens,
    attributes_int['tailspan.step.decode_tokens'] as decode_tokens,
    attributes_int['tailspan.step.waiting'] as waiting,
    attributes_int['tailspan.step.preempted'] as preempted,
    if(
        mapContains(attributes_double, 'tailspan.step.kv_usage_ratio'),
        attributes_double['tailspan.step.kv_usage_ratio'],
        null
    ) as kv_usage_ratio,
    weight,
    status_code,
    toLowCardinality(attributes_string['tailspan.device']) as device,
    if(mapContains(attributes_int, 'tailspan.device.busy_ns'), attributes_int['tailspan.device.busy_ns'], null)
        as busy_ns,
    if(mapContains(attributes_int, 'tailspan.device.idle_ns'), attributes_int['tailspan.device.idle_ns'], null)
        as device_idle_ns,
    if(mapContains(attributes_int, 'tailspan.device.launch_ns'), attributes_int['tailspan.device.launch_ns'], null)
        as launch_ns,
    if(
        mapContains(attributes_int, 'tailspan.device.begin_unix_ns'),
        attributes_int['tailspan.device.begin_unix_ns'],
        null
    ) as begin_ns,
    if(
        mapContains(attributes_int, 'tailspan.device.uncertainty_ns'),
        attributes_int['tailspan.device.uncertainty_ns'],
        null
    ) as uncertainty_ns,
    cast(extractAll(substring(sent_parts, 7), '(?:[0-9]+/)?[a-z_]+'), 'Array(LowCardinality(String))') as parts,
    arrayMap(
        position -> reinterpretAsFloat64(substring(sent_ns, 11 * position + 10, 8)),
        range(intDiv(length(sent_ns), 11))
    ) as parts_ns,
    attributes_int['tailspan.layers.steps'] as layers_steps,
    toLowCardinality(attributes_string['tailspan.layers.mode']) as layers_mode
from tailspan.spans
where
    role = 'step'
    and start >= {since:DateTime64(9, 'UTC')}
    and start < {until:DateTime64(9, 'UTC')}
    and ({service:String} = '' or service = {service:String})
    and ({model:String} = '' or model = {model:String})
    and ({instance:String} = '' or instance = {instance:String})
    and ({engine_id:String} = '' or engine_id = {engine_id:String})
    and step >= {first_step:Int64}
    and ({last_step:Int64} = 0 or step <= {last_step:Int64})
    and (
        toUnixTimestamp64Nano(start) > {after_ns:Int64}
        or (
            toUnixTimestamp64Nano(start) = {after_ns:Int64}
            and lower(hex(spans.span_id)) > {after_span:String}
        )
    )
order by start_ns, span_id
limit {limit:UInt32}
