-- Purpose: what the steps of each engine reached: the largest batch, the most tokens, the KV cache, evictions
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; steps that began in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   instance  String = ''           service.instance.id; empty = all
-- Columns:
--   engine             UInt64   hash of service, instance and engine id
--   steps              UInt64   steps that are stored
--   max_batch          Int64    requests in the largest batch
--   max_batch_waiting  UInt64   of the steps with the largest batch, those that left requests waiting
--   max_tokens         Int64    most tokens of a step
--   max_tokens_steps   UInt64   steps with that many tokens, prompts among them
--   waiting_steps      UInt64   steps that left requests waiting
--   max_kv_ratio       Float64  largest share of the KV cache in use; 0 also where it is not told
--   preempted          Int64    evictions
-- Tables: tailspan.steps
with
taken as (
    select
        cityHash64(service, instance, engine_id) as engine,
        requests,
        prefill_tokens,
        prefill_tokens + decode_tokens as tokens,
        waiting,
        kv_usage_ratio,
        preempted,
        max(requests) over (partition by engine) as largest_batch,
        max(tokens) over (partition by engine) as most_tokens
    from tailspan.steps
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({instance:String} = '' or instance = {instance:String})
)

select
    engine,
    count() as steps,
    max(requests) as max_batch,
    countIf(requests = largest_batch and waiting > 0) as max_batch_waiting,
    max(tokens) as max_tokens,
    countIf(tokens = most_tokens and prefill_tokens > 0) as max_tokens_steps,
    countIf(waiting > 0) as waiting_steps,
    max(kv_usage_ratio) as max_kv_ratio,
    sum(preempted) as preempted
from taken
group by engine
order by engine asc
