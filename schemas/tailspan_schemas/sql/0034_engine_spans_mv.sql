create materialized view if not exists tailspan.engine_spans_mv to tailspan.engine_spans as
-- Runs at every insert of spans, so it only filters; what follows runs for the spans that it lets through. Left out is
-- a request that tailspan's instrumentation traces itself, which it says in the tracestate that it hands to the engine.
select
    trace_id,
    span_id,
    parent_span_id,
    service,
    instance,
    name,
    start,
    status_code,
    status_message,
    model,
    attributes_string,
    attributes_int,
    attributes_double,
    scope_name
from tailspan.spans
where
    (scope_name = 'sglang server' or (name = 'llm_request' and startsWith(scope_name, 'vllm')))
    and role = ''
    and mapContains(attributes_double, 'gen_ai.latency.e2e')
    and not match(trace_state, '(^|,) *tailspan=')
