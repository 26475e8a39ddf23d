create materialized view if not exists tailspan.engine_requests_mv to tailspan.engine_requests as
with
    -- A latency in seconds, as ns; 0 if absent, negative or beyond 30 years.
    (seconds -> if(seconds > 0 and seconds < 1e9, toInt64(round(seconds * 1e9)), 0)) as ns,

    latencies as (
        select
            *,
            if(scope_name = 'sglang server', 'sglang', 'vllm') as engine_name,
            ns(attributes_double['gen_ai.latency.e2e']) as whole_ns,
            ns(attributes_double['gen_ai.latency.time_to_first_token']) as first_token_ns,
            ns(attributes_double['gen_ai.latency.time_in_queue']) as in_queue_ns,
            ns(attributes_double['gen_ai.latency.time_in_model_prefill']) as in_prefill_ns,
            ns(attributes_double['gen_ai.latency.time_in_model_decode']) as in_decode_ns
        from tailspan.engine_spans
    ),

    -- What each engine means by its keys: its stages in order, which follow each other without a gap.
    defined as (
        select
            *,
            multiIf(
                -- vLLM: queue = queued to scheduled; prefill = scheduled to first token; decode = first to last token.
                engine_name = 'vllm',
                [('queue', in_queue_ns), ('prefill', in_prefill_ns), ('decode', in_decode_ns)],
                -- SGLang: prefill = handed to the scheduler to first token, with the queue in it; decode = first token
                -- to the end of the request. Where it does not report the queue, that cannot be told from prefill.
                in_queue_ns = 0,
                [('queue+prefill', in_prefill_ns), ('decode', in_decode_ns)],
                [
                    ('queue', in_queue_ns),
                    ('prefill', greatest(in_prefill_ns - in_queue_ns, 0)),
                    ('decode', in_decode_ns)
                ]
            ) as parts,
            -- In both, prefill ends with the first token; what is before the first stage is measured by neither.
            greatest(first_token_ns - if(engine_name = 'vllm', in_queue_ns, 0) - in_prefill_ns, 0) as begin_ns
        from latencies
    ),

    -- Stages partition the request: the last of them ends when it does, at the latest.
    bounded as (
        select
            *,
            arrayMap(end_ns -> least(begin_ns + end_ns, whole_ns), arrayCumSum(parts.2)) as ends_ns,
            arrayPopBack(arrayPushFront(ends_ns, least(begin_ns, whole_ns))) as begins_ns,
            arrayMap((begin, end) -> end - begin, begins_ns, ends_ns) as walls_ns
        from defined
    )

select
    toLowCardinality(engine_name) as engine,
    trace_id,
    span_id,
    parent_span_id,
    service,
    instance,
    toLowCardinality(if(model = '', attributes_string['gen_ai.response.model'], toString(model))) as model,
    name,
    attributes_string['gen_ai.request.id'] as request_id,
    start,
    whole_ns as e2e_ns,
    first_token_ns as ttft_ns,
    cast(arrayFilter((stage, wall) -> wall > 0, parts.1, walls_ns), 'Array(LowCardinality(String))')
        as `stages.stage`,
    arrayFilter((begin, wall) -> wall > 0, begins_ns, walls_ns) as `stages.offset_ns`,
    arrayFilter(wall -> wall > 0, walls_ns) as `stages.wall_ns`,
    whole_ns - arraySum(walls_ns) as unattributed_ns,
    attributes_int['gen_ai.usage.prompt_tokens'] as input_tokens,
    attributes_int['gen_ai.usage.completion_tokens'] as output_tokens,
    status_code,
    status_message,
    attributes_string['error.type'] as error_type
from bounded
