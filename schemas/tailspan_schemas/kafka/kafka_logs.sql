create table if not exists tailspan.kafka_logs as tailspan.otlp_logs
engine = Kafka(tailspan_kafka, kafka_topic_list = 'otlp_logs', kafka_format = 'ProtobufSingle')
settings
    kafka_schema = 'otlp_logs:LogsRequest',
    kafka_handle_error_mode = 'stream',
    kafka_max_block_size = 256,
    kafka_poll_max_batch_size = 256,
    kafka_flush_interval_ms = 2000,
    kafka_thread_per_consumer = 1,
    input_format_protobuf_oneof_presence = 1
comment 'OTLP export requests of a Kafka topic (encoding otlp_proto), one request a message'
