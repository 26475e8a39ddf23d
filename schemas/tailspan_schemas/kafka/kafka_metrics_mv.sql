create materialized view if not exists tailspan.kafka_metrics_mv to tailspan.otlp_metrics as
select resource_metrics
from tailspan.kafka_metrics
where empty(_error)
