create table if not exists tailspan.migrations
(
    version UInt32 comment 'Number of the .sql file that was applied',
    name String comment 'Name of the .sql file without number and ending',
    checksum String comment 'SHA-256 of the file text when it was applied, hexadecimal',
    applied_at DateTime64(3, 'UTC') comment 'When the file was applied, UTC'
)
engine = MergeTree
order by version
comment 'Schema files that were applied to this database, one row each'
