create table if not exists tailspan.otlp_traces
(
    resource_spans Array(Tuple(
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
            )),
            dropped_attributes_count UInt32,
            entity_refs Array(String)
        ),
        scope_spans Array(Tuple(
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
            spans Array(Tuple(
                trace_id String,
                span_id String,
                trace_state String,
                parent_span_id String,
                name String,
                kind Int32,
                start_time_unix_nano Int64,
                end_time_unix_nano Int64,
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
                dropped_attributes_count UInt32,
                events Array(Tuple(
                    time_unix_nano Int64,
                    name String,
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
                )),
                dropped_events_count UInt32,
                links Array(Tuple(
                    trace_id String,
                    span_id String,
                    trace_state String,
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
                    dropped_attributes_count UInt32,
                    flags UInt32
                )),
                dropped_links_count UInt32,
                status Tuple(message String, code Int32),
                flags UInt32
            )),
            schema_url String
        )),
        schema_url String
    )) comment 'The ResourceSpans of one OTLP export request as they came; times in ns since 1970-01-01 UTC'
)
engine = Null
comment 'Where OTLP requests enter (FORMAT Protobuf, otlp_traces.proto); stores nothing, its view fills tailspan.spans'
