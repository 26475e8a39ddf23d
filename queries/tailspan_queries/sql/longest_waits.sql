-- Purpose: the requests that waited longest in the queue, each with the value of an attribute
-- The wait is that of one stage `queue`; an evicted request waits again under `preempted`.
-- The rollup by minute knows the longest wait of each minute and instance, so that only the minutes are read that can
-- hold one of the longest, and those that are not whole at the ends of the window.
-- Parameters:
--   since     DateTime64(9, 'UTC')  begin of the window, inclusive; requests that began to wait in it
--   until     DateTime64(9, 'UTC')  end of the window, exclusive
--   service   String = ''           service.name; empty = all
--   model     String = ''           gen_ai.request.model; empty = all
--   instance  String = ''           service.instance.id; empty = all
--   by        String = 'priority'   priority, model, instance, service, engine, lora, outcome, or any attribute
--   limit     UInt32 = 5            requests to list
-- Columns:
--   trace_id  String                  32 hex digits
--   key       String                  value of the attribute; empty = the request has none, or its span is not stored
--   start     DateTime64(9, 'UTC')    begin of the wait
--   wait_ns   Int64                   ns, wall time of the stage
--   e2e_ns    Int64                   ns, end-to-end time; 0 if the span of the request is not stored
--   instance  LowCardinality(String)  service.instance.id
-- Tables: tailspan.spans, tailspan.stage_minutes, tailspan.stages
with
{since:DateTime64(9, 'UTC')} as window_begin,
{until:DateTime64(9, 'UTC')} as window_end,

longest_minutes as (
    select minute
    from tailspan.stage_minutes
    where
        stage = 'queue'
        and minute >= window_begin
        and minute < toStartOfMinute(window_end)
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    group by service, model, instance, minute
    order by max(wall_max_ns) desc, minute asc
    limit {limit:UInt32}
),

-- In the unit of the primary key of `spans`.
read_times as (
    select toStartOfFiveMinutes(minute) as five_minutes
    from longest_minutes
    union distinct
    select toStartOfFiveMinutes(arrayJoin([window_begin, window_end])) as five_minutes
),

longest as (
    select
        trace_id,
        request_span_id,
        start,
        wall_ns,
        model,
        service,
        instance
    from tailspan.stages
    where
        stage = 'queue'
        and toStartOfFiveMinutes(start) in (select five_minutes from read_times)
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    order by wall_ns desc, trace_id asc, request_span_id asc
    limit {limit:UInt32}
),

-- A request begins before its wait, by less than an hour.
request_times as (
    select toStartOfFiveMinutes(start) - toIntervalMinute(5 * arrayJoin(range(13))) as five_minutes
    from longest
),

asked as (
    select
        trace_id,
        span_id,
        duration_ns as e2e_ns,
        multiIf(
            {by:String} = 'priority', toString(attributes_int['tailspan.priority']),
            {by:String} = 'engine', toString(engine_id),
            {by:String} = 'lora', attributes_string['tailspan.lora'],
            {by:String} = 'outcome', attributes_string['tailspan.outcome'],
            mapContains(attributes_string, {by:String}), attributes_string[{by:String}],
            mapContains(attributes_int, {by:String}), toString(attributes_int[{by:String}]),
            mapContains(attributes_bool, {by:String}), toString(attributes_bool[{by:String}]),
            resource_attributes[{by:String}]
        ) as key
    from tailspan.spans
    where
        role = 'request'
        and toStartOfFiveMinutes(start) in (select five_minutes from request_times)
        and trace_id in (select trace_id from longest)
)

select
    lower(hex(longest.trace_id)) as trace_id,
    multiIf(
        {by:String} = 'model', toString(longest.model),
        {by:String} = 'instance', toString(longest.instance),
        {by:String} = 'service', toString(longest.service),
        asked.key
    ) as key,
    longest.start as start,
    longest.wall_ns as wait_ns,
    asked.e2e_ns as e2e_ns,
    longest.instance as instance
from longest
left join asked on longest.trace_id = asked.trace_id and longest.request_span_id = asked.span_id
order by wait_ns desc, trace_id asc
