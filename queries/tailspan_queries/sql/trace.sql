-- Purpose: every span of one trace in the order of time
-- A request that only the engine's own tracing reported has the role `request`, the times that the engine gives, and
-- its stages as spans below it, which are computed and not stored.
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
-- Tables: tailspan.engine_requests, tailspan.spans
with
engine_traced as (
    select
        trace_id,
        span_id,
        start,
        model,
        service,
        instance,
        request_id,
        e2e_ns,
        ttft_ns,
        stages.stage as names,
        stages.offset_ns as offsets_ns,
        stages.wall_ns as walls_ns,
        input_tokens,
        output_tokens
    from tailspan.engine_requests
    where
        engine_requests.trace_id = toFixedString(unhex({trace_id:String}), 16)
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
),

stored as (
    select *
    from tailspan.spans
    where
        spans.trace_id = toFixedString(unhex({trace_id:String}), 16)
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
),

all_spans as (
    select
        lower(hex(stored.span_id)) as span_id,
        if(stored.parent_span_id = toFixedString('', 8), '', lower(hex(stored.parent_span_id))) as parent_span_id,
        stored.service as service,
        stored.instance as instance,
        stored.name as name,
        stored.kind as kind,
        toUnixTimestamp64Nano(stored.start) as start_ns,
        if(own.e2e_ns > 0, own.e2e_ns, stored.duration_ns) as duration_ns,
        toLowCardinality(if(own.e2e_ns > 0, 'request', toString(stored.role))) as role,
        stored.stage as stage,
        toLowCardinality(if(own.e2e_ns > 0, toString(own.model), toString(stored.model))) as model,
        if(own.e2e_ns > 0, own.request_id, stored.request_id) as request_id,
        stored.engine_id as engine_id,
        stored.first_step as first_step,
        stored.last_step as last_step,
        stored.status_code as status_code,
        stored.status_message as status_message,
        if(own.e2e_ns > 0, own.input_tokens, stored.input_tokens) as input_tokens,
        if(own.e2e_ns > 0, own.output_tokens, stored.output_tokens) as output_tokens,
        stored.busy_ns as busy_ns,
        stored.gpu_ns as gpu_ns,
        if(own.e2e_ns > 0, own.ttft_ns, stored.ttft_ns) as ttft_ns,
        stored.weight as weight,
        stored.attributes_string as attributes_string,
        stored.attributes_int as attributes_int,
        stored.attributes_double as attributes_double,
        stored.attributes_bool as attributes_bool,
        arrayMap(id -> lower(hex(id)), stored.links.trace_id) as link_trace_ids
    from stored
    left join engine_traced as own on stored.span_id = own.span_id
    union all
    select
        lower(leftPad(hex(sipHash64(trace_id, engine_traced.span_id, stage)), 16, '0')) as span_id,
        lower(hex(engine_traced.span_id)) as parent_span_id,
        service,
        instance,
        toLowCardinality(toString(part.1)) as name,
        toInt8(1) as kind,
        toUnixTimestamp64Nano(start) + part.2 as start_ns,
        part.3 as duration_ns,
        toLowCardinality('stage') as role,
        name as stage,
        model,
        request_id,
        toLowCardinality('') as engine_id,
        toInt64(0) as first_step,
        toInt64(0) as last_step,
        toInt8(0) as status_code,
        '' as status_message,
        toInt64(0) as input_tokens,
        toInt64(0) as output_tokens,
        toInt64(0) as busy_ns,
        toInt64(-1) as gpu_ns,
        toInt64(0) as ttft_ns,
        toFloat64(1) as weight,
        cast(map(), 'Map(LowCardinality(String), String)') as attributes_string,
        cast(map(), 'Map(LowCardinality(String), Int64)') as attributes_int,
        cast(map(), 'Map(LowCardinality(String), Float64)') as attributes_double,
        cast(map(), 'Map(LowCardinality(String), Bool)') as attributes_bool,
        emptyArrayString() as link_trace_ids
    from engine_traced
    array join arrayZip(names, offsets_ns, walls_ns) as part
)

select *
from all_spans
order by start_ns asc, duration_ns desc, span_id asc
limit {limit:UInt32}
