create materialized view if not exists tailspan.kafka_traces_mv to tailspan.otlp_traces as
select resource_spans
from tailspan.kafka_traces
where empty(_error)
