create view if not exists tailspan.stages -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id, 16 raw bytes',
    request_span_id FixedString(8) comment 'Span id of the request that the stage belongs to, 8 raw bytes',
    span_id FixedString(8) comment 'Span id of the stage, 8 raw bytes',
    stage LowCardinality(String) comment 'Name of the stage',
    service LowCardinality(String) comment 'Service that served the request',
    instance LowCardinality(String) comment 'Instance of the service',
    model LowCardinality(String) comment 'Model asked for',
    engine_id LowCardinality(String) comment 'The engine instance that ran the stage',
    start DateTime64(9, 'UTC') comment 'Begin of the stage, UTC, ns',
    wall_ns Int64 comment 'Wall time of the stage, ns',
    busy_ns Int64 comment 'Time in which a CPU or GPU worked for the request in the stage, ns',
    gpu_ns Int64 comment 'Device time within the stage, ns; -1 = no device measured',
    first_step Int64 comment 'First engine step of a prefill or decode stage',
    last_step Int64 comment 'Last engine step of a prefill or decode stage',
    weight Float64 comment 'How many stages the span stands for; 1 unless sampled',
    whole_weight UInt64 comment 'weight as a whole number, right in the mean; for weighted quantiles',
    status_code Int8 comment 'OTLP status: 0 unset, 1 ok, 2 error'
)
as
select
    trace_id,
    parent_span_id as request_span_id,
    span_id,
    stage,
    service,
    instance,
    model,
    engine_id,
    start,
    duration_ns as wall_ns,
    busy_ns,
    gpu_ns,
    first_step,
    last_step,
    weight,
    whole_weight,
    status_code
from tailspan.spans
where role = 'stage'
union all
select
    trace_id,
    engine_requests.span_id as request_span_id,
    toFixedString(
        unhex(leftPad(hex(sipHash64(trace_id, engine_requests.span_id, stage)), 16, '0')), 8
    ) as span_id,
    part.1 as stage,
    service,
    instance,
    model,
    '' as engine_id,
    engine_requests.start + toIntervalNanosecond(part.2) as start,
    part.3 as wall_ns,
    toInt64(0) as busy_ns,
    toInt64(-1) as gpu_ns,
    toInt64(0) as first_step,
    toInt64(0) as last_step,
    toFloat64(1) as weight,
    toUInt64(1) as whole_weight,
    status_code
from tailspan.engine_requests
array join arrayZip(stages.stage, stages.offset_ns, stages.wall_ns) as part
comment 'Every stage of every request, one row each; the stages of a request partition its wall time'
