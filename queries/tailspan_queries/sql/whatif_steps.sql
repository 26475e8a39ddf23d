-- Purpose: steps of the engines with the time each took, to fit a model of step times to
-- `period_ns` is the step, from the later of its begin and the end of the one before, and the idle time before it.
-- Of many steps every n-th run of 64 is there, so that neighbours stay neighbours. Steps that failed are left out.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; steps that began in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   every     UInt32 = 1            take every n-th run of 64 steps
-- Columns:
--   engine          UInt64   hash of service, instance and engine id
--   step            Int64    number of the step
--   begin_ns        Int64    ns since 1970
--   period_ns       Int64    ns
--   requests        Int64    requests in the batch
--   prefill_tokens  Int64    prompt tokens computed
--   decode_tokens   Int64    decode tokens computed
--   waiting         Int64    requests left waiting
--   kv_usage_ratio  Float64  share of the KV cache in use; 0 also where it is not told
--   weight          Float64  how many steps it stands for
-- Tables: tailspan.steps
with
taken as (
    select
        cityHash64(service, instance, engine_id) as engine,
        step,
        toUnixTimestamp64Nano(start) as begin_ns,
        begin_ns + wall_ns as end_ns,
        lagInFrame(end_ns, 1, begin_ns) over (
            partition by engine order by step asc rows between 1 preceding and current row
        ) as previous_end_ns,
        greatest(end_ns - greatest(begin_ns, previous_end_ns), 0) + idle_ns as period_ns,
        requests,
        prefill_tokens,
        decode_tokens,
        waiting,
        kv_usage_ratio,
        weight,
        status_code
    from tailspan.steps
    where
        start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({instance:String} = '' or instance = {instance:String})
)

select
    engine,
    step,
    begin_ns,
    period_ns,
    requests,
    prefill_tokens,
    decode_tokens,
    waiting,
    kv_usage_ratio,
    weight
from taken
where status_code != 2 and intDiv(step, 64) % {every:UInt32} = 0
order by engine asc, step asc
