-- Purpose: every span of one trace in the order of time
-- What a request took that only the engine's own tracing reported, in attributes of its span, is in query
-- `trace_engine`.
-- Parameters:
--   trace_id  String                32 hex digits
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; bounds the search, see query `trace_lookup`
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   limit     UInt32 = 10000        spans to list
-- Columns:
--   span_id            String                                16 hex digits
--   parent_span_id     String                                16 hex digits; empty = none
--   service            LowCardinality(String)                service.name
--   instance           LowCardinality(String)                service.instance.id
--   name               LowCardinality(String)                name of the span
--   kind               Int8                                  OTLP span kind
--   start_ns           Int64                                 ns since the epoch
--   duration_ns        Int64                                 ns
--   role               LowCardinality(String)                request, stage, step, or empty: a span of someone else
--   stage              LowCardinality(String)                stage, on stage spans
--   model              LowCardinality(String)                gen_ai.request.model
--   request_id         String                                the engine's request id
--   engine_id          LowCardinality(String)                engine instance
--   first_step         Int64                                 first engine step
--   last_step          Int64                                 last engine step
--   status_code        Int8                                  OTLP status: 0 unset, 1 ok, 2 error
--   status_message     String                                text of the status
--   input_tokens       Int64                                 prompt tokens
--   output_tokens      Int64                                 generated tokens
--   busy_ns            Int64                                 ns; 0 where it is not measured
--   gpu_ns             Int64                                 ns; -1 where none was measured
--   ttft_ns            Int64                                 ns; 0 without a token
--   weight             Float64                               how many requests or steps it stands for; 1 unless sampled
--   attributes_string  Map(LowCardinality(String), String)   other attributes
--   attributes_int     Map(LowCardinality(String), Int64)    other attributes
--   attributes_double  Map(LowCardinality(String), Float64)  other attributes
--   attributes_bool    Map(LowCardinality(String), Bool)     other attributes
--   link_trace_ids     Array(String)                         traces that the span links to, 32 hex digits each
-- Tables: tailspan.spans
select
    lower(hex(spans.span_id)) as span_id,
    if(spans.parent_span_id = toFixedString('', 8), '', lower(hex(spans.parent_span_id))) as parent_span_id,
    service,
    instance,
    name,
    kind,
    toUnixTimestamp64Nano(start) as start_ns,
    duration_ns,
    role,
    stage,
    model,
    request_id,
    engine_id,
    first_step,
    last_step,
    status_code,
    status_message,
    input_tokens,
    output_tokens,
    busy_ns,
    gpu_ns,
    ttft_ns,
    weight,
    attributes_string,
    attributes_int,
    attributes_double,
    attributes_bool,
    arrayMap(id -> lower(hex(id)), links.trace_id) as link_trace_ids
from tailspan.spans
where
    trace_id = toFixedString(unhex({trace_id:String}), 16)
    and start >= {since:DateTime64(9, 'UTC')}
    and start < {until:DateTime64(9, 'UTC')}
order by start_ns asc, duration_ns desc, span_id asc
limit {limit:UInt32}
