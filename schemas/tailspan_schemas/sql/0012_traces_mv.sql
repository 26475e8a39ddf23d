create materialized view if not exists tailspan.traces_mv to tailspan.traces as
select
    trace_id,
    toDate(min(spans.start), 'UTC') as day,
    min(spans.start) as start,
    max(fromUnixTimestamp64Nano(toUnixTimestamp64Nano(spans.start) + spans.duration_ns, 'UTC')) as end,
    max(spans.start) as last_start,
    count() as span_count,
    countIf(status_code = 2) as error_count,
    countIf(role = 'request') as request_count,
    countIf(role = 'step') as step_count,
    max(spans.weight) as weight,
    maxIf(service, parent_span_id = toFixedString('', 8)) as root_service,
    maxIf(name, parent_span_id = toFixedString('', 8)) as root_name
from tailspan.spans
group by trace_id
