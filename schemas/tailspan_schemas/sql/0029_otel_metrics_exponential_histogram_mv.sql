create materialized view if not exists tailspan.otel_metrics_exponential_histogram_mv
to tailspan.otel_metrics_exponential_histogram as
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
    Scale,
    ZeroCount,
    PositiveOffset,
    PositiveBucketCounts,
    NegativeOffset,
    NegativeBucketCounts,
    `Exemplars.FilteredAttributes`,
    `Exemplars.TimeUnix`,
    `Exemplars.Value`,
    `Exemplars.SpanId`,
    `Exemplars.TraceId`,
    Flags,
    Min,
    Max,
    AggregationTemporality
from tailspan.metric_points
where Kind = 'exponential_histogram'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
