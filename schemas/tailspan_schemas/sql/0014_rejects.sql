create table if not exists tailspan.rejects
(
    rejected_at DateTime64(3, 'UTC') default now64(3) comment 'When the collector gave up on the message, UTC',
    signal LowCardinality(String) default 'traces' comment 'OTLP signal of the message: traces',
    code Int32 comment 'ClickHouse error code of the failed insert',
    reason String comment 'Why ClickHouse refused the message' codec(ZSTD(1)),
    batch String comment 'Deduplication token of the batch that held the message',
    payload String comment 'The OTLP export request as it was received, raw protobuf' codec(ZSTD(3))
)
engine = MergeTree
partition by toDate(rejected_at)
order by rejected_at
settings non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1
comment 'Messages that were acknowledged but that ClickHouse cannot decode, one row each; nothing is thrown away'
