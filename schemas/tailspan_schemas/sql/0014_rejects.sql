create table if not exists tailspan.rejects
(
    rejected_at DateTime64(3, 'UTC') default now64(3) comment 'When the collector gave up on the request, UTC',
    received_at DateTime64(3, 'UTC') comment 'When the collector took the request, UTC',
    peer String comment 'Address and port of the sender; empty if not known' codec(ZSTD(1)),
    signal LowCardinality(String) comment 'OTLP signal of the request: traces, metrics or logs',
    code Int32 comment 'ClickHouse error code of the failed insert',
    reason String comment 'Why ClickHouse refused the request' codec(ZSTD(1)),
    batch String comment 'Deduplication token of the insert that failed',
    payload String comment 'The OTLP export request as it was received, raw protobuf' codec(ZSTD(3))
)
engine = MergeTree
partition by toDate(rejected_at)
order by rejected_at
settings non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Requests that were acknowledged but that ClickHouse cannot store, one row each; nothing is thrown away'
