create table if not exists tailspan.otlp_metrics
(
    resource_metrics Array(Tuple(
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
        scope_metrics Array(Tuple(
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
            metrics Array(Tuple(
                name String,
                description String,
                unit String,
                gauge Tuple(data_points Array(Tuple(
                    start_time_unix_nano UInt64,
                    time_unix_nano UInt64,
                    as_double Float64,
                    as_int Int64,
                    value Enum8('empty' = 0, 'double' = 4, 'int' = 6),
                    exemplars Array(Tuple(
                        time_unix_nano UInt64,
                        as_double Float64,
                        as_int Int64,
                        value Enum8('empty' = 0, 'double' = 3, 'int' = 6),
                        span_id String,
                        trace_id String,
                        filtered_attributes Array(Tuple(
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
                    )),
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
                    flags UInt32
                ))),
                sum Tuple(
                    data_points Array(Tuple(
                        start_time_unix_nano UInt64,
                        time_unix_nano UInt64,
                        as_double Float64,
                        as_int Int64,
                        value Enum8('empty' = 0, 'double' = 4, 'int' = 6),
                        exemplars Array(Tuple(
                            time_unix_nano UInt64,
                            as_double Float64,
                            as_int Int64,
                            value Enum8('empty' = 0, 'double' = 3, 'int' = 6),
                            span_id String,
                            trace_id String,
                            filtered_attributes Array(Tuple(
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
                        )),
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
                        flags UInt32
                    )),
                    aggregation_temporality Int32,
                    is_monotonic Bool
                ),
                histogram Tuple(
                    data_points Array(Tuple(
                        start_time_unix_nano UInt64,
                        time_unix_nano UInt64,
                        count UInt64,
                        sum Float64,
                        bucket_counts Array(UInt64),
                        explicit_bounds Array(Float64),
                        exemplars Array(Tuple(
                            time_unix_nano UInt64,
                            as_double Float64,
                            as_int Int64,
                            value Enum8('empty' = 0, 'double' = 3, 'int' = 6),
                            span_id String,
                            trace_id String,
                            filtered_attributes Array(Tuple(
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
                        )),
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
                        min Float64,
                        max Float64
                    )),
                    aggregation_temporality Int32
                ),
                exponential_histogram Tuple(
                    data_points Array(Tuple(
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
                        start_time_unix_nano UInt64,
                        time_unix_nano UInt64,
                        count UInt64,
                        sum Float64,
                        scale Int32,
                        zero_count UInt64,
                        positive Tuple(offset Int32, bucket_counts Array(UInt64)),
                        negative Tuple(offset Int32, bucket_counts Array(UInt64)),
                        flags UInt32,
                        exemplars Array(Tuple(
                            time_unix_nano UInt64,
                            as_double Float64,
                            as_int Int64,
                            value Enum8('empty' = 0, 'double' = 3, 'int' = 6),
                            span_id String,
                            trace_id String,
                            filtered_attributes Array(Tuple(
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
                        )),
                        min Float64,
                        max Float64
                    )),
                    aggregation_temporality Int32
                ),
                summary Tuple(data_points Array(Tuple(
                    start_time_unix_nano UInt64,
                    time_unix_nano UInt64,
                    count UInt64,
                    sum Float64,
                    quantile_values Array(Tuple(quantile Float64, value Float64)),
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
                    flags UInt32
                ))),
                data Enum8(
                    'empty' = 0, 'gauge' = 5, 'sum' = 7, 'histogram' = 9, 'exponential_histogram' = 10, 'summary' = 11
                )
            )),
            schema_url String
        )),
        schema_url String
    )) comment 'The ResourceMetrics of one OTLP export request as they came; times in ns since 1970-01-01 UTC'
)
engine = Null
comment 'Where OTLP metric requests enter (FORMAT Protobuf, otlp_metrics.proto); its view fills metric_points'
