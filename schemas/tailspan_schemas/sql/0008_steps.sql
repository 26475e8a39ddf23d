create view if not exists tailspan.steps -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id of the step, 16 raw bytes; a step is a trace of its own',
    span_id FixedString(8) comment 'Span id of the step, 8 raw bytes',
    service LowCardinality(String) comment 'Service that runs the engine',
    instance LowCardinality(String) comment 'Instance of the service',
    model LowCardinality(String) comment 'Model that the engine runs',
    engine_id LowCardinality(String) comment 'The engine instance',
    step Int64 comment 'Number of the step within its engine',
    start DateTime64(9, 'UTC') comment 'Begin of the step, UTC, ns',
    wall_ns Int64 comment 'Wall time of the step, ns',
    busy_ns Int64 comment 'Time in which a CPU or GPU worked, ns',
    gpu_ns Int64 comment 'Device time of the step, ns; -1 = no device measured',
    idle_ns Int64 comment 'Time since the previous step ended while requests were there, ns',
    requests Int64 comment 'Requests in the batch, count',
    prefill_tokens Int64 comment 'Prompt tokens computed, count',
    decode_tokens Int64 comment 'Decode tokens computed, count',
    waiting Int64 comment 'Requests that waited for the scheduler, count',
    preempted Int64 comment 'Requests evicted, count',
    kv_usage_ratio Float64 comment 'Share of the KV cache in use, 0 to 1',
    weight Float64 comment 'How many steps the span stands for; 1 unless sampled',
    whole_weight UInt64 comment 'weight as a whole number, right in the mean; for weighted quantiles',
    status_code Int8 comment 'OTLP status: 0 unset, 1 ok, 2 error',
    device String comment 'Clock that timed the work: cuda, rocm, or cpu for the host clock; empty = not timed',
    device_busy_ns Int64
        comment 'Device time from the first kernel of the forward pass to the last of sampling, ns; -1 = not timed',
    device_idle_ns Int64
        comment 'Device time from the previous step to this one while requests were there, ns; -1 = not known',
    launch_ns Int64 comment 'Host time to launch the forward pass, ns; -1 = not known, as on a CPU',
    device_begin DateTime64(9, 'UTC') comment 'When the device began, on the host clock, UTC, ns; 1970 = not known',
    device_uncertainty_ns Int64 comment 'How far off device_begin can be to either side, ns; -1 = not known'
)
as
select
    trace_id,
    span_id,
    service,
    instance,
    model,
    engine_id,
    step,
    start,
    duration_ns as wall_ns,
    busy_ns,
    gpu_ns,
    attributes_int['tailspan.step.idle_ns'] as idle_ns,
    attributes_int['tailspan.step.requests'] as requests,
    attributes_int['tailspan.step.prefill_tokens'] as prefill_tokens,
    attributes_int['tailspan.step.decode_tokens'] as decode_tokens,
    attributes_int['tailspan.step.waiting'] as waiting,
    attributes_int['tailspan.step.preempted'] as preempted,
    attributes_double['tailspan.step.kv_usage_ratio'] as kv_usage_ratio,
    weight,
    whole_weight,
    status_code,
    attributes_string['tailspan.device'] as device,
    if(mapContains(attributes_int, 'tailspan.device.busy_ns'), attributes_int['tailspan.device.busy_ns'], -1)
        as device_busy_ns,
    if(mapContains(attributes_int, 'tailspan.device.idle_ns'), attributes_int['tailspan.device.idle_ns'], -1)
        as device_idle_ns,
    if(mapContains(attributes_int, 'tailspan.device.launch_ns'), attributes_int['tailspan.device.launch_ns'], -1)
        as launch_ns,
    fromUnixTimestamp64Nano(attributes_int['tailspan.device.begin_unix_ns'], 'UTC') as device_begin,
    if(
        mapContains(attributes_int, 'tailspan.device.uncertainty_ns'),
        attributes_int['tailspan.device.uncertainty_ns'],
        -1
    ) as device_uncertainty_ns
from tailspan.spans
where role = 'step'
comment 'Every engine step, one row each'
