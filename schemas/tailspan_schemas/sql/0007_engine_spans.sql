create table if not exists tailspan.engine_spans -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id, 16 raw bytes',
    span_id FixedString(8) comment 'Span id, 8 raw bytes',
    parent_span_id FixedString(8) comment 'Span id of the parent, 8 raw bytes; zeros = no parent',
    service LowCardinality(String) comment 'Resource attribute service.name',
    instance LowCardinality(String) comment 'Resource attribute service.instance.id',
    name LowCardinality(String) comment 'Span name',
    start DateTime64(9, 'UTC') comment 'Begin of the span, UTC, ns',
    status_code Int8 comment 'OTLP status: 0 unset, 1 ok, 2 error',
    status_message String comment 'Text of the status',
    model LowCardinality(String) comment 'gen_ai.request.model: model asked for',
    attributes_string Map(LowCardinality(String), String) comment 'String attributes',
    attributes_int Map(LowCardinality(String), Int64) comment 'Integer attributes',
    attributes_double Map(LowCardinality(String), Float64) comment 'Double attributes',
    scope_name LowCardinality(String) comment 'Instrumentation scope name'
)
engine = Null
comment 'Request spans of engines'' own tracing on their way to engine_requests; stores nothing'
