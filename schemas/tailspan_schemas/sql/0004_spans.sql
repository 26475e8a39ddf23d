create table if not exists tailspan.spans -- noqa: PRS
(
    trace_id FixedString(16)
        comment 'Trace id, 16 raw bytes; zero-padded or cut if not; search with start or by lower(hex(trace_id))'
        codec(ZSTD(1)),
    span_id FixedString(8)
        comment 'Span id, 8 raw bytes; zeros if empty, cut or zero-padded if of another length' codec(ZSTD(1)),
    parent_span_id FixedString(8) comment 'Span id of the parent, 8 raw bytes; zeros = no parent' codec(ZSTD(1)),
    trace_state String comment 'W3C tracestate' codec(ZSTD(1)),
    flags UInt32 comment 'OTLP span flags, bit field; the low 8 bits are the W3C trace flags' codec(T64, ZSTD(1)),
    service LowCardinality(String) comment 'Resource attribute service.name',
    instance LowCardinality(String) comment 'Resource attribute service.instance.id' codec(ZSTD(1)),
    name LowCardinality(String) comment 'Span name',
    kind Int8 comment 'OTLP span kind: 0 unspecified, 1 internal, 2 server, 3 client, 4 producer, 5 consumer',
    start DateTime64(9, 'UTC') comment 'Begin of the span, UTC, ns' codec(Delta(8), ZSTD(1)),
    duration_ns Int64 comment 'End less begin, ns; negative where the sender said so' codec(T64, ZSTD(1)),
    status_code Int8 comment 'OTLP status: 0 unset, 1 ok, 2 error',
    status_message String comment 'Text of the status' codec(ZSTD(1)),
    role LowCardinality(String) comment 'tailspan.role: request, stage, step, layer, event, snapshot; empty on spans of others',
    stage LowCardinality(String) comment 'tailspan.stage: the stage that a stage span measures',
    model LowCardinality(String) comment 'gen_ai.request.model: model asked for',
    request_id String comment 'gen_ai.response.id: the engine''s request id' codec(ZSTD(1)),
    engine_id LowCardinality(String)
        comment 'tailspan.engine.id: the engine instance that ran the request or step' codec(ZSTD(1)),
    first_step Int64 comment 'tailspan.step.first: first engine step of the span; 0 if absent' codec(T64, ZSTD(1)),
    last_step Int64 comment 'tailspan.step.last: last engine step of the span; 0 if absent' codec(ZSTD(1)),
    step Int64 comment 'tailspan.step.number: number of the step within its engine; 0 if absent' codec(T64, ZSTD(1)),
    input_tokens Int64 comment 'gen_ai.usage.input_tokens: prompt tokens; 0 if absent' codec(ZSTD(1)),
    output_tokens Int64 comment 'gen_ai.usage.output_tokens: generated tokens; 0 if absent' codec(ZSTD(1)),
    busy_ns Int64
        comment 'tailspan.busy_ns: time in which a CPU or GPU worked for the request, ns; 0 if absent' codec(ZSTD(1)),
    gpu_ns Int64 default -1
        comment 'tailspan.gpu_ns: time the device computed, ns; -1 = no device measured' codec(T64, ZSTD(1)),
    unattributed_ns Int64
        comment 'tailspan.unattributed_ns: request time that no stage covers, ns; 0 if absent' codec(T64, ZSTD(1)),
    ttft_ns Int64
        comment 'tailspan.ttft_ns: begin until the first body chunk left, ns; 0 if absent' codec(ZSTD(1)),
    weight Float64 default 1
        comment 'tailspan.weight: how many requests or steps the span stands for, 1 to 1e9; 1 unless sampled' codec(ZSTD(1)),
    attributes_string Map(LowCardinality(String), String)
        comment 'String attributes that have no column of their own' codec(ZSTD(1)),
    attributes_int Map(LowCardinality(String), Int64)
        comment 'Integer attributes that have no column of their own' codec(ZSTD(1)),
    attributes_double Map(LowCardinality(String), Float64)
        comment 'Double attributes that have no column of their own' codec(ZSTD(1)),
    attributes_bool Map(LowCardinality(String), Bool)
        comment 'Boolean attributes that have no column of their own' codec(ZSTD(1)),
    attributes_other Map(LowCardinality(String), String)
        comment 'bytes, arrays, key-value lists, empty values: kind, colon, raw protobuf' codec(ZSTD(1)),
    dropped_attributes UInt32 comment 'Attributes that the sender dropped, count' codec(T64, ZSTD(1)),
    events Nested(
        time DateTime64(9, 'UTC'),
        name LowCardinality(String),
        attributes Map(LowCardinality(String), String),
        dropped_attributes UInt32
    ) comment 'Events; time UTC in ns; attribute values as kind, colon, text or raw protobuf' codec(ZSTD(1)),
    dropped_events UInt32 comment 'Events that the sender dropped, count' codec(T64, ZSTD(1)),
    links Nested(
        trace_id String,
        span_id String,
        trace_state String,
        attributes Map(LowCardinality(String), String),
        dropped_attributes UInt32,
        flags UInt32
    )
        comment 'Links; ids are the raw bytes as they came; attribute values as kind, colon, text or raw protobuf'
        codec(ZSTD(1)),
    dropped_links UInt32 comment 'Links that the sender dropped, count' codec(T64, ZSTD(1)),
    resource LowCardinality(String)
        comment 'Resource attributes: text of an Array(Tuple(String, String)), values as kind, colon, text or protobuf'
        codec(ZSTD(1)),
    resource_dropped_attributes UInt32 comment 'Resource attributes that the sender dropped, count' codec(T64, ZSTD(1)),
    resource_entity_refs Array(String) comment 'EntityRef messages of the resource, raw protobuf' codec(ZSTD(1)),
    resource_schema_url LowCardinality(String) comment 'Schema URL of the resource',
    scope_name LowCardinality(String) comment 'Instrumentation scope name',
    scope_version LowCardinality(String) comment 'Instrumentation scope version',
    scope LowCardinality(String)
        comment 'Scope attributes: text of an Array(Tuple(String, String)), values as kind, colon, text or protobuf',
    scope_dropped_attributes UInt32 comment 'Scope attributes that the sender dropped, count' codec(T64, ZSTD(1)),
    scope_schema_url LowCardinality(String) comment 'Schema URL of the scope',
    stored DateTime('UTC') default now()
        comment 'When the insert of the span began, UTC, s: the order in which spans came' codec(ZSTD(1)),
    whole_weight UInt64 alias
        toUInt64(least(weight, 1e15) + bitShiftRight(cityHash64(trace_id), 32) / 4294967296)
        comment 'weight as a whole number, for weighted quantiles: up or down by trace id so that its mean is weight',
    resource_attributes Map(String, String) alias
        cast(
            arrayMap(
                x -> (x.1, substring(x.2, position(x.2, ':') + 1)), cast(resource, 'Array(Tuple(String, String))')
            ),
            'Map(String, String)'
        )
        comment 'Resource attributes without their kinds, decoded when read',
    scope_attributes Map(String, String) alias
        cast(
            arrayMap(x -> (x.1, substring(x.2, position(x.2, ':') + 1)), cast(scope, 'Array(Tuple(String, String))')),
            'Map(String, String)'
        )
        comment 'Scope attributes without their kinds, decoded when read',
    index trace_id_hex lower(hex(trace_id)) type bloom_filter(0.001) granularity 1,
    index request_id_filter request_id type bloom_filter(0.001) granularity 1,
    index stored_range stored type minmax granularity 1
)
engine = MergeTree
partition by toDate(start)
primary key (toStartOfFiveMinutes(start), model, trace_id)
order by (toStartOfFiveMinutes(start), model, trace_id, start)
settings non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Every span, one row each; an OTLP span can be rebuilt from its row field by field (tailspan_schemas.rows)'
