create materialized view if not exists tailspan.otel_metrics_sum_mv to tailspan.otel_metrics_sum as
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
    Value,
    Flags,
    `Exemplars.FilteredAttributes`,
    `Exemplars.TimeUnix`,
    `Exemplars.Value`,
    `Exemplars.SpanId`,
    `Exemplars.TraceId`,
    AggregationTemporality,
    IsMonotonic
from tailspan.metric_points
where Kind = 'sum'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
