create materialized view if not exists tailspan.kafka_logs_mv to tailspan.otlp_logs as
select resource_logs
from tailspan.kafka_logs
where empty(_error)
