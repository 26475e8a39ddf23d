create named collection if not exists tailspan_kafka as -- noqa: PRS
kafka_broker_list = 'kafka:9092',
kafka_group_name = 'tailspan',
kafka_security_protocol = 'PLAINTEXT'
