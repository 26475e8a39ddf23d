create materialized view if not exists tailspan.kafka_logs_rejects_mv to tailspan.rejects as
select
    now64(3) as rejected_at,
    coalesce(_timestamp_ms, now64(3)) as received_at,
    concat('kafka:', _topic) as peer,
    'logs' as signal,
    toInt32OrZero(extract(_error, 'Code: (\\d+)')) as code,
    _error as reason,
    concat('kafka-', _topic, '-', toString(_partition), '-', toString(_offset)) as batch,
    _raw_message as payload
from tailspan.kafka_logs
where notEmpty(_error)
