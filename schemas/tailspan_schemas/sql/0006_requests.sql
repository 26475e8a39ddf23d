create view if not exists tailspan.requests -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id, 16 raw bytes',
    span_id FixedString(8) comment 'Span id of the request, 8 raw bytes; its stages name it as their parent',
    parent_span_id FixedString(8) comment 'Span id of the caller''s span, 8 raw bytes; zeros = none',
    service LowCardinality(String) comment 'Service that served the request',
    instance LowCardinality(String) comment 'Instance of the service',
    model LowCardinality(String) comment 'Model asked for',
    name LowCardinality(String) comment 'Span name',
    request_id String comment 'The engine''s request id',
    engine_id LowCardinality(String) comment 'The engine instance that ran the request',
    start DateTime64(9, 'UTC') comment 'Begin of the request, UTC, ns',
    e2e_ns Int64 comment 'End-to-end time, ns',
    ttft_ns Int64 comment 'Time to the first token, ns; 0 if there was none',
    unattributed_ns Int64 comment 'Part of the end-to-end time that no stage covers, ns',
    busy_ns Int64 comment 'Time in which a CPU or GPU worked for the request, ns',
    gpu_ns Int64 comment 'Device time of the request, ns; -1 = no device measured',
    input_tokens Int64 comment 'Prompt tokens, count',
    output_tokens Int64 comment 'Generated tokens, count',
    weight Float64 comment 'How many requests the span stands for; 1 unless sampled',
    whole_weight UInt64 comment 'weight as a whole number, right in the mean; for weighted quantiles',
    status_code Int8 comment 'OTLP status: 0 unset, 1 ok, 2 error',
    status_message String comment 'Text of the status',
    outcome String comment 'How the request ended: ok, error, client_disconnect, cancelled, lost',
    error_type String comment 'Class of the error that ended the request; empty without one'
)
as
select
    trace_id,
    span_id,
    parent_span_id,
    service,
    instance,
    model,
    name,
    request_id,
    engine_id,
    start,
    duration_ns as e2e_ns,
    ttft_ns,
    unattributed_ns,
    busy_ns,
    gpu_ns,
    input_tokens,
    output_tokens,
    weight,
    whole_weight,
    status_code,
    status_message,
    attributes_string['tailspan.outcome'] as outcome,
    attributes_string['error.type'] as error_type
from tailspan.spans
where role = 'request'
comment 'Every request, one row each'
