-- Purpose: the stages of some requests, and what other instrumentations told of the same traces, for a trace viewer
-- A span of which the engine's own tracing made a request is not listed again.
-- Parameters:
--   since   DateTime64(9, 'UTC')  begin of the window in which the requests began, inclusive
--   until   DateTime64(9, 'UTC')  end of that window, exclusive
--   traces  Array(String) = []    32 hex digits each; empty = all of the window
--   limit   UInt32 = 50000        spans to list, the earliest
-- Columns:
--   trace_id           String                                32 hex digits
--   span_id            String                                16 hex digits
--   parent_span_id     String                                16 hex digits; zeros = none
--   service            LowCardinality(String)                service.name
--   instance           LowCardinality(String)                service.instance.id
--   name               LowCardinality(String)                name of the span; of a stage the stage
--   role               LowCardinality(String)                stage, snapshot, or empty: a span of someone else
--   scope              LowCardinality(String)                instrumentation scope; of a stage empty
--   start_ns           Int64                                 ns since the epoch
--   wall_ns            Int64                                 ns
--   busy_ns            Int64                                 ns; 0 where it is not measured
--   gpu_ns             Int64                                 ns; -1 where none was measured
--   engine_id          LowCardinality(String)                engine instance
--   first_step         Int64                                 first engine step of a prefill or decode
--   last_step          Int64                                 last engine step of a prefill or decode
--   status_code        Int8                                  OTLP status: 0 unset, 1 ok, 2 error
--   status_message     String                                text of the status; of a stage empty
--   attributes_string  Map(LowCardinality(String), String)   other attributes; of a stage none
--   attributes_int     Map(LowCardinality(String), Int64)    other attributes; of a stage none
--   attributes_double  Map(LowCardinality(String), Float64)  other attributes; of a stage none
--   attributes_bool    Map(LowCardinality(String), Bool)     other attributes; of a stage none
-- Tables: tailspan.engine_requests, tailspan.requests, tailspan.spans, tailspan.stages, tailspan.traces
with
wanted as (
    select arrayJoin(arrayMap(id -> toFixedString(unhex(id), 16), {traces:Array(String)})) as trace_id
    where {traces:Array(String)} != []
    union all
    select requests.trace_id as trace_id
    from tailspan.requests
    where
        {traces:Array(String)} = []
        and requests.start >= {since:DateTime64(9, 'UTC')}
        and requests.start < {until:DateTime64(9, 'UTC')}
),

-- When their spans began, which bounds the search for them.
began as (
    select
        min(traces.start) as earliest,
        max(traces.last_start) as latest
    from tailspan.traces
    where traces.trace_id in (select wanted.trace_id from wanted)
),

listed as (
    select
        lower(hex(stages.trace_id)) as trace_id,
        lower(hex(stages.span_id)) as span_id,
        lower(hex(stages.request_span_id)) as parent_span_id,
        stages.service as service,
        stages.instance as instance,
        stages.stage as name,
        toLowCardinality('stage') as role,
        toLowCardinality('') as scope,
        toUnixTimestamp64Nano(stages.start) as start_ns,
        stages.wall_ns as wall_ns,
        stages.busy_ns as busy_ns,
        stages.gpu_ns as gpu_ns,
        stages.engine_id as engine_id,
        stages.first_step as first_step,
        stages.last_step as last_step,
        stages.status_code as status_code,
        '' as status_message,
        cast(map(), 'Map(LowCardinality(String), String)') as attributes_string,
        cast(map(), 'Map(LowCardinality(String), Int64)') as attributes_int,
        cast(map(), 'Map(LowCardinality(String), Float64)') as attributes_double,
        cast(map(), 'Map(LowCardinality(String), Bool)') as attributes_bool
    from tailspan.stages
    where
        stages.start >= (select began.earliest from began)
        -- The stages of a request that the engine traced begin after its only span.
        and stages.start <= (select began.latest from began) + toIntervalHour(1)
        and stages.trace_id in (select wanted.trace_id from wanted)
    union all
    select
        lower(hex(spans.trace_id)) as trace_id,
        lower(hex(spans.span_id)) as span_id,
        lower(hex(spans.parent_span_id)) as parent_span_id,
        spans.service as service,
        spans.instance as instance,
        spans.name as name,
        spans.role as role,
        spans.scope_name as scope,
        toUnixTimestamp64Nano(spans.start) as start_ns,
        spans.duration_ns as wall_ns,
        spans.busy_ns as busy_ns,
        spans.gpu_ns as gpu_ns,
        spans.engine_id as engine_id,
        spans.first_step as first_step,
        spans.last_step as last_step,
        spans.status_code as status_code,
        spans.status_message as status_message,
        spans.attributes_string as attributes_string,
        spans.attributes_int as attributes_int,
        spans.attributes_double as attributes_double,
        spans.attributes_bool as attributes_bool
    from tailspan.spans
    where
        spans.start >= (select began.earliest from began)
        and spans.start <= (select began.latest from began)
        and spans.role in ('', 'snapshot')
        and spans.trace_id in (select wanted.trace_id from wanted)
        and (spans.trace_id, spans.span_id) not in (
            select
                engine_requests.trace_id,
                engine_requests.span_id
            from tailspan.engine_requests
            where engine_requests.trace_id in (select wanted.trace_id from wanted)
        )
)

select *
from listed
order by start_ns asc, wall_ns desc, trace_id asc, span_id asc
limit {limit:UInt32}
