-- Purpose: what the scheduler did for the demo's requests: batches, chunked prefills, prefix-cache hits, evictions
-- Of a request that was evicted, only its first prefill counts as its prompt's.
-- Parameters:
--   since    DateTime64(9, 'UTC')  begin of the window, inclusive
--   until    DateTime64(9, 'UTC')  end of the window, exclusive
--   service  String                service.name of the demo's server
-- Columns:
--   steps               UInt64   engine steps
--   mixed_steps         UInt64   steps that computed prompt tokens and decode tokens
--   requests_mean       Float64  requests in the batch, mean over steps; 0 without steps
--   requests_max        Int64    requests in the largest batch
--   waiting_max         Int64    requests that waited for the scheduler, largest
--   kv_usage_max_ratio  Float64  largest share of the KV cache in use, 0 to 1; 0 also where it is not told
--   prompts             UInt64   requests whose prompt was computed
--   prompt_tokens       Int64    tokens of their prompts
--   cached_tokens       Int64    of these, taken from the prefix cache
--   chunked_prompts     UInt64   prompts that took more than one step
--   chunks_max          Int64    steps of the prompt that took most of them
--   evictions           UInt64   evictions
--   evicted_requests    UInt64   requests that were evicted
-- Tables: tailspan.spans, tailspan.steps
WITH
batches AS (
    SELECT
        count() AS steps,
        countIf(prefill_tokens > 0 AND decode_tokens > 0) AS mixed_steps,
        if(steps > 0, sum(requests) / steps, 0) AS requests_mean,
        max(requests) AS requests_max,
        max(waiting) AS waiting_max,
        max(kv_usage_ratio) AS kv_usage_max_ratio
    FROM tailspan.steps
    WHERE
        service = {service:String}
        AND start >= {since:DateTime64(9, 'UTC')}
        AND start < {until:DateTime64(9, 'UTC')}
),

computed AS (
    SELECT
        countIf(stage = 'prefill') > 0 AS has_prompt,
        argMinIf(input_tokens, start, stage = 'prefill') AS tokens,
        argMinIf(attributes_int['tailspan.prefill.cached_tokens'], start, stage = 'prefill') AS cached,
        argMinIf(attributes_int['tailspan.prefill.chunks'], start, stage = 'prefill') AS chunks,
        countIf(stage = 'preempted') AS evicted
    FROM tailspan.spans
    WHERE
        role = 'stage'
        AND stage IN ('prefill', 'preempted')
        AND service = {service:String}
        AND start >= {since:DateTime64(9, 'UTC')}
        AND start < {until:DateTime64(9, 'UTC')}
    GROUP BY trace_id, parent_span_id
),

prompts AS (
    SELECT
        countIf(has_prompt) AS prompts,
        sum(tokens) AS prompt_tokens,
        sum(cached) AS cached_tokens,
        countIf(chunks > 1) AS chunked_prompts,
        max(chunks) AS chunks_max,
        sum(evicted) AS evictions,
        countIf(evicted > 0) AS evicted_requests
    FROM computed
)

SELECT
    batches.steps,
    batches.mixed_steps,
    batches.requests_mean,
    batches.requests_max,
    batches.waiting_max,
    batches.kv_usage_max_ratio,
    prompts.prompts,
    prompts.prompt_tokens,
    prompts.cached_tokens,
    prompts.chunked_prompts,
    prompts.chunks_max,
    prompts.evictions,
    prompts.evicted_requests
FROM batches
CROSS JOIN prompts
