-- Purpose: the requests that engines computed, with what a replay of their scheduler needs: arrival, lengths, stages
-- A request belongs to the engine of its first prefill. Requests that were in the engine when the window began are
-- there too, not counted, so that the replay does not begin with an empty engine. Of more than `limit` requests in the
-- window the latest are taken, and the window begins with the first of them; not counted are as many at most. The
-- minute from which on there are enough comes from the per-minute rollup, so that no more spans are read than that,
-- however long the window is.
-- Requests without a stage prefill (refused, aborted in the queue, traced by the engine only) are left out.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; requests that began in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   limit     UInt32 = 20000        requests that count, at most
-- Columns:
--   engine         UInt64   hash of service, instance and engine id
--   name           String   engine id
--   counted        UInt8    1 if it began in the window, 0 if before
--   is_cut         UInt8    1 if the window may hold more requests than were taken
--   start_ns       Int64    ns since 1970, begin of the request
--   arrival_ns     Int64    ns since 1970, begin of the queue; of the first prefill where no queue was traced
--   first_ns       Int64    ns since 1970, first token: begin of the first decode; without one, end of the last prefill
--   last_ns        Int64    ns since 1970, end of the last prefill or decode
--   end_ns         Int64    ns since 1970, end of the request
--   input_tokens   Int64    prompt tokens
--   cached_tokens  Int64    of them, those that the prefix cache held when the request was first scheduled
--   output_tokens  Int64    generated tokens
--   first_step     Int64    step of the engine in which the prefill began; 0 = not known
--   decode_step    Int64    first step of the decode; 0 without one
--   last_step      Int64    last step of prefill or decode
--   tls_ns         Int64    ns, wall time of stage tls; so for the stages below
--   receive_ns     Int64    ns
--   tokenize_ns    Int64    ns
--   dispatch_ns    Int64    ns
--   queue_ns       Int64    ns
--   prefill_ns     Int64    ns
--   decode_ns      Int64    ns
--   preempted_ns   Int64    ns
--   detokenize_ns  Int64    ns
--   respond_ns     Int64    ns
--   weight         Float64  how many requests it stands for
-- Tables: tailspan.spans, tailspan.stage_minutes
with
minutes as (
    select
        minute,
        sum(sum(span_count)) over (order by minute desc rows between unbounded preceding and current row) as so_far
    from tailspan.stage_minutes
    where
        stage = 'request'
        and minute >= {since:DateTime64(9, 'UTC')}
        -- Of a minute that the window cuts nobody knows how many it holds.
        and minute < toStartOfMinute({until:DateTime64(9, 'UTC')})
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    group by minute
),

recent as (
    -- The latest of nothing is 1970.
    select greatest(max(toDateTime64(minute, 9, 'UTC')), {since:DateTime64(9, 'UTC')}) as begin
    from minutes
    where so_far >= {limit:UInt32}
),

latest as (
    select
        start,
        duration_ns
    from tailspan.spans
    where
        role = 'request'
        and start >= (select begin from recent)
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    order by start desc
    limit {limit:UInt32}
),

extent as (
    select
        toUInt8(
            count() >= {limit:UInt32} or (select begin from recent) > {since:DateTime64(9, 'UTC')}
        ) as is_cut,
        -- The least of nothing is 1970.
        greatest(min(start), {since:DateTime64(9, 'UTC')}) as begin,
        toIntervalNanosecond(max(duration_ns)) as longest
    from latest
)

select
    cityHash64(
        any(service),
        any(instance),
        argMinIf(engine_id, start, stage = 'prefill' and engine_id != '') as engine_name
    ) as engine,
    engine_name as name,
    toUInt8(anyIf(start, role = 'request') >= assumeNotNull((select begin from extent))) as counted,
    assumeNotNull((select is_cut from extent)) as is_cut,
    toUnixTimestamp64Nano(anyIf(start, role = 'request')) as start_ns,
    toUnixTimestamp64Nano(
        if(countIf(stage = 'queue') > 0, minIf(start, stage = 'queue'), minIf(start, stage = 'prefill'))
    ) as arrival_ns,
    if(
        countIf(stage = 'decode') > 0,
        toUnixTimestamp64Nano(minIf(start, stage = 'decode')),
        maxIf(toUnixTimestamp64Nano(start) + duration_ns, stage = 'prefill')
    ) as first_ns,
    maxIf(toUnixTimestamp64Nano(start) + duration_ns, stage in ('prefill', 'decode')) as last_ns,
    start_ns + anyIf(duration_ns, role = 'request') as end_ns,
    anyIf(spans.input_tokens, role = 'request') as input_tokens,
    argMinIf(attributes_int['tailspan.prefill.cached_tokens'], start, stage = 'prefill') as cached_tokens,
    anyIf(spans.output_tokens, role = 'request') as output_tokens,
    minIf(spans.first_step, stage = 'prefill') as first_step,
    minIf(spans.first_step, stage = 'decode') as decode_step,
    maxIf(spans.last_step, stage in ('prefill', 'decode')) as last_step,
    sumIf(duration_ns, stage = 'tls') as tls_ns,
    sumIf(duration_ns, stage = 'receive') as receive_ns,
    sumIf(duration_ns, stage = 'tokenize') as tokenize_ns,
    sumIf(duration_ns, stage = 'dispatch') as dispatch_ns,
    sumIf(duration_ns, stage = 'queue') as queue_ns,
    sumIf(duration_ns, stage = 'prefill') as prefill_ns,
    sumIf(duration_ns, stage = 'decode') as decode_ns,
    sumIf(duration_ns, stage = 'preempted') as preempted_ns,
    sumIf(duration_ns, stage = 'detokenize') as detokenize_ns,
    sumIf(duration_ns, stage = 'respond') as respond_ns,
    anyIf(spans.weight, role = 'request') as weight
from tailspan.spans
where
    role in ('request', 'stage')
    -- A stage lies within its request; a minute of grace for clocks that were set meanwhile.
    and start >= (select begin from extent) - (select longest from extent) - toIntervalMinute(1)
    and start < {until:DateTime64(9, 'UTC')} + (select longest from extent)
group by trace_id, if(role = 'request', span_id, parent_span_id)
having
    countIf(
        role = 'request'
        and start >= (select begin from extent) - (select longest from extent)
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    ) > 0
    and countIf(stage = 'prefill') > 0
order by start_ns desc
limit {limit:UInt32} * 2
