create table if not exists tailspan.optimization_records -- noqa: PRS
(
    trace_id FixedString(16) comment 'Id of the entry, 16 raw bytes: every state of it is a span of this trace',
    span_id FixedString(8) comment 'Span id of the state, 8 raw bytes',
    start DateTime64(9, 'UTC') comment 'When the state was written, UTC, ns',
    attributes_string Map(LowCardinality(String), String) comment 'String attributes, see tailspan.attributes',
    attributes_int Map(LowCardinality(String), Int64) comment 'Integer attributes',
    attributes_double Map(LowCardinality(String), Float64) comment 'Double attributes',
    attributes_bool Map(LowCardinality(String), Bool) comment 'Boolean attributes'
)
engine = MergeTree
partition by toDate(start)
order by (trace_id, start)
settings non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Every state of every entry of the optimisation ledger, one row each; read the view optimizations'
