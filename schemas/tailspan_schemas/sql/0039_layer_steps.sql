create table if not exists tailspan.layer_steps -- noqa: PRS
(
    trace_id FixedString(16) comment 'Trace id of the step, 16 raw bytes',
    span_id FixedString(8) comment 'Span id of the step, 8 raw bytes',
    service LowCardinality(String) comment 'Service that runs the engine',
    instance LowCardinality(String) comment 'Instance of the service',
    model LowCardinality(String) comment 'Model that the engine runs',
    engine_id LowCardinality(String) comment 'The engine instance',
    step Int64 comment 'Number of the step within its engine',
    start DateTime64(9, 'UTC') comment 'Begin of the step, UTC, ns',
    weight Float64 comment 'How many steps the span stands for; 1 unless sampled',
    attributes_string Map(LowCardinality(String), String) comment 'String attributes of the step span',
    attributes_int Map(LowCardinality(String), Int64) comment 'Integer attributes of the step span',
    parts String comment 'tailspan.layers.parts as stored: array, colon, an ArrayValue of strings, raw protobuf',
    times String comment 'tailspan.layers.ns as stored: array, colon, an ArrayValue of doubles in ns, raw protobuf'
)
engine = Null
comment 'Step spans with times of the model''s parts, on their way to layers; stores nothing'
