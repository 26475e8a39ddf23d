create materialized view if not exists tailspan.otel_metrics_summary_mv to tailspan.otel_metrics_summary as
select
    ResourceAttributes,
    ResourceSchemaUrl,
    ScopeName,
    ScopeVersion,
    ScopeAttributes,
    ScopeDroppedAttrCount,
    ScopeSchemaUrl,
    ServiceName,
    MetricName,
    MetricDescription,
    MetricUnit,
    Attributes,
    StartTimeUnix,
    TimeUnix,
    Count,
    Sum,
    `ValueAtQuantiles.Quantile`,
    `ValueAtQuantiles.Value`,
    Flags
from tailspan.metric_points
where Kind = 'summary'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
