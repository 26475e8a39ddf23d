-- Purpose: requests of one trace that only the engine's own tracing reported
-- Stages are computed from what the engine says of the request and not stored: their ids are made up.
-- Parameters:
--   trace_id  String                32 hex digits
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; bounds the search, see query `trace_lookup`
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
-- Columns:
--   span_id         String                         16 hex digits, of the request's span in query `trace`
--   model           LowCardinality(String)         gen_ai.request.model
--   request_id      String                         the engine's request id
--   e2e_ns          Int64                          ns, end-to-end time
--   ttft_ns         Int64                          ns; 0 without a token
--   input_tokens    Int64                          prompt tokens
--   output_tokens   Int64                          generated tokens
--   stage_span_ids  Array(String)                  16 hex digits each
--   stage_names     Array(LowCardinality(String))  stages in the order of time
--   offsets_ns      Array(Int64)                   ns from the begin of the request to that of the stage
--   walls_ns        Array(Int64)                   ns, wall time of the stage
-- Tables: tailspan.engine_requests
select
    lower(hex(engine_requests.span_id)) as span_id,
    model,
    request_id,
    e2e_ns,
    ttft_ns,
    input_tokens,
    output_tokens,
    arrayMap(
        stage -> lower(leftPad(hex(sipHash64(trace_id, engine_requests.span_id, stage)), 16, '0')), stages.stage
    ) as stage_span_ids,
    stages.stage as stage_names,
    stages.offset_ns as offsets_ns,
    stages.wall_ns as walls_ns
from tailspan.engine_requests
where
    trace_id = toFixedString(unhex({trace_id:String}), 16)
    and start >= {since:DateTime64(9, 'UTC')}
    and start < {until:DateTime64(9, 'UTC')}
order by start, span_id
