create table if not exists tailspan.otlp_logs
(
    resource_logs Array(Tuple(
        resource Tuple(
            attributes Array(Tuple(
                key String,
                value Tuple(
                    string_value String, bool_value Bool, int_value Int64, double_value Float64,
                    bytes_value String, array_value String, kvlist_value String,
                    value Enum8(
                        'empty' = 0, 'string' = 1, 'bool' = 2, 'int' = 3, 'double' = 4,
                        'array' = 5, 'kvlist' = 6, 'bytes' = 7
                    )
                )
            ))
        ),
        scope_logs Array(Tuple(
            scope Tuple(
                name String,
                version String,
                attributes Array(Tuple(
                    key String,
                    value Tuple(
                        string_value String, bool_value Bool, int_value Int64, double_value Float64,
                        bytes_value String, array_value String, kvlist_value String,
                        value Enum8(
                            'empty' = 0, 'string' = 1, 'bool' = 2, 'int' = 3, 'double' = 4,
                            'array' = 5, 'kvlist' = 6, 'bytes' = 7
                        )
                    )
                )),
                dropped_attributes_count UInt32
            ),
            log_records Array(Tuple(
                time_unix_nano UInt64,
                observed_time_unix_nano UInt64,
                severity_number Int32,
                severity_text String,
                body Tuple(
                    string_value String, bool_value Bool, int_value Int64, double_value Float64,
                    bytes_value String, array_value String, kvlist_value String,
                    value Enum8(
                        'empty' = 0, 'string' = 1, 'bool' = 2, 'int' = 3, 'double' = 4,
                        'array' = 5, 'kvlist' = 6, 'bytes' = 7
                    )
                ),
                attributes Array(Tuple(
                    key String,
                    value Tuple(
                        string_value String, bool_value Bool, int_value Int64, double_value Float64,
                        bytes_value String, array_value String, kvlist_value String,
                        value Enum8(
                            'empty' = 0, 'string' = 1, 'bool' = 2, 'int' = 3, 'double' = 4,
                            'array' = 5, 'kvlist' = 6, 'bytes' = 7
                        )
                    )
                )),
                flags UInt32,
                trace_id String,
                span_id String,
                event_name String
            )),
            schema_url String
        )),
        schema_url String
    )) comment 'The ResourceLogs of one OTLP export request as they came; times in ns since 1970-01-01 UTC'
)
engine = Null
comment 'Where OTLP log requests enter (FORMAT Protobuf, otlp_logs.proto); stores nothing, its view fills otel_logs'
