create materialized view if not exists tailspan.metric_points_mv to tailspan.metric_points as
with
    -- The JSON text of a raw ArrayValue (kvlist = 0) or KeyValueList (kvlist = 1): a step for each field of the
    -- protobuf and one for the end of each message. Kinds: 1 array, 2 key-value list, 3 value, 4 pair; `gap` is the
    -- last character so far. Longer or more branched values than the limits stay raw, in base64.
    ((raw, kvlist, steps) -> arrayFold(
        (done, i) -> arrayMap(
            (at, ends, kinds, json, tag, digits) -> arrayMap(
                (kind, is_over, gap, begin, number) -> (
                    multiIf(
                        is_over, ends[-1],
                        tag = 33, at + 9,
                        kind >= 3 and tag in (10, 58), begin + number,
                        begin
                    ),
                    multiIf(
                        is_over, arrayPopBack(ends),
                        kind < 3 or tag in (18, 42, 50), arrayPushBack(ends, begin + number),
                        ends
                    ),
                    multiIf(
                        is_over, arrayPopBack(kinds),
                        kind < 3, arrayPushBack(kinds, toInt8(kind + 2)),
                        tag in (18, 42, 50), arrayPushBack(kinds, toInt8(transform(tag, [42, 50], [1, 2], 3))),
                        kinds
                    ),
                    concat(json, multiIf(
                        is_over,
                        multiIf(kind = 1, ']', kind = 2, '}', gap = '{', '"":null', gap in ('[', ',', ':'), 'null', ''),
                        kind < 3, if(gap in ('[', '{'), '', ','),
                        tag = 10, concat(
                            replaceAll(toJSONString(substring(raw, begin, number)), '\\/', '/'),
                            if(kind = 4, ':', '')
                        ),
                        tag = 18, if(gap = ':', '', '"":'),
                        tag = 42, '[',
                        tag = 50, '{',
                        tag = 16, if(number = 0, 'false', 'true'),
                        tag = 24, toString(number),
                        tag = 33, if(
                            isFinite(reinterpretAsFloat64(substring(raw, at + 1, 8))),
                            replaceRegexpOne(
                                toString(reinterpretAsFloat64(substring(raw, at + 1, 8))), 'e(\\d)', 'e+\\1'
                            ),
                            'null'
                        ),
                        concat('"', base64Encode(substring(raw, begin, number)), '"')
                    ))
                ),
                [kinds[-1]],
                [at >= ends[-1]],
                [right(json, 1)],
                [at + 1 + length(digits)],
                -- A length that lies is cut to what no value here exceeds, and comes to nothing; numbers stay whole.
                [bitAnd(
                    reinterpretAsInt64(arraySum(
                        (digit, n) -> bitShiftLeft(toUInt64(digit % 128), 7 * n - 7), digits, arrayEnumerate(digits)
                    )),
                    if(tag in (16, 24), toInt64(-1), toInt64(0x1FFFF))
                )]
            )[1],
            [done.1], [done.2], [done.3], [done.4],
            [reinterpretAsUInt8(substring(raw, done.1, 1))],
            [arraySlice(
                reinterpret(substring(raw, done.1 + 1, 10), 'Array(UInt8)'),
                1,
                arrayFirstIndex(digit -> digit < 128, reinterpret(substring(raw, done.1 + 1, 10), 'Array(UInt8)'))
            )]
        )[1],
        range(steps),
        (toInt64(1), [toInt64(length(raw) + 1)], [toInt8(kvlist + 1)], if(kvlist, '{', '['))
    )) as json_of,

    -- At most 4,096 steps, of a value of at most 64 KiB.
    (raw -> if(
        length(raw) > 65536,
        0,
        arraySum(
            byte -> transform(byte, [10, 16, 18, 24, 33, 42, 50, 58], [2, 1, 2, 1, 1, 2, 2, 1], 0),
            reinterpret(raw, 'Array(UInt8)')
        ) + 1
    )) as steps_of,

    ((raw, kvlist) -> arrayMap(
        done -> if(empty(done.2), done.4, base64Encode(raw)),
        [json_of(raw, kvlist, if(steps_of(raw) > 4096, 0, steps_of(raw)))]
    )[1]) as nested_text,

    (x -> if(
        isFinite(x),
        replaceRegexpOne(toString(x), 'e(\\d)', 'e+\\1'),
        concat('json: unsupported value: ', multiIf(isNaN(x), 'NaN', x > 0, '+Inf', '-Inf'))
    )) as double_text,

    (v -> multiIf(
        v.value = 'string', v.string_value,
        v.value = 'int', toString(v.int_value),
        v.value = 'double', double_text(v.double_value),
        v.value = 'bool', if(v.bool_value, 'true', 'false'),
        v.value = 'bytes', base64Encode(v.bytes_value),
        v.value in ('array', 'kvlist'), nested_text(concat(v.array_value, v.kvlist_value), v.value = 'kvlist'),
        ''
    )) as text_of,

    -- What a kind of metric does not have.
    toUInt64(0) as no_count,
    toInt32(0) as no_index,
    emptyArrayUInt64() as no_counts,
    emptyArrayFloat64() as no_bounds,
    cast([], 'Array(Tuple(quantile Float64, value Float64))') as no_quantiles,

    scopes as (
        select
            rm.resource.attributes.key as resource_keys,
            sm.scope.attributes.key as scope_keys,
            arrayMap(
                v -> text_of(v), arrayConcat(rm.resource.attributes.value, sm.scope.attributes.value)
            ) as texts,
            rm.schema_url as resource_schema_url,
            sm.scope.name as scope_name,
            sm.scope.version as scope_version,
            sm.scope.dropped_attributes_count as scope_dropped_attributes,
            sm.schema_url as scope_schema_url,
            sm.metrics as metrics_of_scope
        from tailspan.otlp_metrics
        array join resource_metrics as rm
        array join rm.scope_metrics as sm
    ),

    metrics as (
        select
            mapSort(mapFromArrays(resource_keys, arraySlice(texts, 1, length(resource_keys)))) as resource_attributes,
            resource_schema_url,
            scope_name,
            scope_version,
            mapSort(mapFromArrays(scope_keys, arraySlice(texts, length(resource_keys) + 1))) as scope_attributes,
            scope_dropped_attributes,
            scope_schema_url,
            metric.name as metric_name,
            metric.description as metric_description,
            metric.unit as metric_unit,
            toString(metric.data) as kind,
            multiIf(
                kind = 'sum', metric.sum.aggregation_temporality,
                kind = 'histogram', metric.histogram.aggregation_temporality,
                kind = 'exponential_histogram', metric.exponential_histogram.aggregation_temporality,
                0
            ) as temporality,
            metric.sum.is_monotonic as is_monotonic,
            arrayFlatten(metric.gauge.data_points.exemplars) as no_exemplars,
            -- Points of all kinds in one form.
            multiIf(
                kind = 'gauge', arrayMap(
                    p -> tuple(
                        p.attributes, p.start_time_unix_nano, p.time_unix_nano, p.flags, p.exemplars,
                        if(p.value = 'int', toFloat64(p.as_int), p.as_double),
                        no_count, 0., 0., 0., no_counts, no_bounds,
                        no_index, no_count, no_index, no_counts, no_index, no_counts, no_quantiles
                    ),
                    metric.gauge.data_points
                ),
                kind = 'sum', arrayMap(
                    p -> tuple(
                        p.attributes, p.start_time_unix_nano, p.time_unix_nano, p.flags, p.exemplars,
                        if(p.value = 'int', toFloat64(p.as_int), p.as_double),
                        no_count, 0., 0., 0., no_counts, no_bounds,
                        no_index, no_count, no_index, no_counts, no_index, no_counts, no_quantiles
                    ),
                    metric.sum.data_points
                ),
                kind = 'histogram', arrayMap(
                    p -> tuple(
                        p.attributes, p.start_time_unix_nano, p.time_unix_nano, p.flags, p.exemplars,
                        0., p.count, p.sum, p.min, p.max, p.bucket_counts, p.explicit_bounds,
                        no_index, no_count, no_index, no_counts, no_index, no_counts, no_quantiles
                    ),
                    metric.histogram.data_points
                ),
                kind = 'exponential_histogram', arrayMap(
                    p -> tuple(
                        p.attributes, p.start_time_unix_nano, p.time_unix_nano, p.flags, p.exemplars,
                        0., p.count, p.sum, p.min, p.max, no_counts, no_bounds,
                        p.scale, p.zero_count, p.positive.offset, p.positive.bucket_counts,
                        p.negative.offset, p.negative.bucket_counts, no_quantiles
                    ),
                    metric.exponential_histogram.data_points
                ),
                arrayMap(
                    p -> tuple(
                        p.attributes, p.start_time_unix_nano, p.time_unix_nano, p.flags, no_exemplars,
                        0., p.count, p.sum, 0., 0., no_counts, no_bounds,
                        no_index, no_count, no_index, no_counts, no_index, no_counts, p.quantile_values
                    ),
                    metric.summary.data_points
                )
            ) as points_of_metric
        from scopes
        array join metrics_of_scope as metric
    ),

    points as (
        select
            *,
            point,
            point.1 as point_attributes,
            point.5 as exemplars,
            point.19 as quantiles,
            length(point_attributes) as attribute_count,
            arrayMap(e -> length(e.filtered_attributes), exemplars) as exemplar_sizes,
            arrayMap(
                v -> text_of(v),
                arrayConcat(point_attributes.value, arrayFlatten(exemplars.filtered_attributes.value))
            ) as point_texts
        from metrics
        array join points_of_metric as point
    )

select
    toLowCardinality(kind) as Kind,
    resource_attributes as ResourceAttributes,
    resource_schema_url as ResourceSchemaUrl,
    scope_name as ScopeName,
    scope_version as ScopeVersion,
    scope_attributes as ScopeAttributes,
    scope_dropped_attributes as ScopeDroppedAttrCount,
    scope_schema_url as ScopeSchemaUrl,
    toLowCardinality(resource_attributes['service.name']) as ServiceName,
    metric_name as MetricName,
    metric_description as MetricDescription,
    metric_unit as MetricUnit,
    mapSort(mapFromArrays(point_attributes.key, arraySlice(point_texts, 1, attribute_count))) as Attributes,
    fromUnixTimestamp64Nano(reinterpretAsInt64(point.2)) as StartTimeUnix,
    fromUnixTimestamp64Nano(reinterpretAsInt64(point.3)) as TimeUnix,
    point.4 as Flags,
    arrayMap(
        (e, size, last) -> mapSort(mapFromArrays(
            e.filtered_attributes.key, arraySlice(point_texts, attribute_count + last - size + 1, size)
        )),
        exemplars, exemplar_sizes, arrayCumSum(exemplar_sizes)
    ) as `Exemplars.FilteredAttributes`,
    arrayMap(e -> fromUnixTimestamp64Nano(reinterpretAsInt64(e.time_unix_nano)), exemplars) as `Exemplars.TimeUnix`,
    arrayMap(e -> if(e.value = 'int', toFloat64(e.as_int), e.as_double), exemplars) as `Exemplars.Value`,
    arrayMap(e -> if(match(e.span_id, '^\0*$'), '', lower(hex(e.span_id))), exemplars) as `Exemplars.SpanId`,
    arrayMap(e -> if(match(e.trace_id, '^\0*$'), '', lower(hex(e.trace_id))), exemplars) as `Exemplars.TraceId`,
    point.6 as Value,
    point.7 as Count,
    point.8 as Sum,
    point.9 as Min,
    point.10 as Max,
    point.11 as BucketCounts,
    point.12 as ExplicitBounds,
    point.13 as Scale,
    point.14 as ZeroCount,
    point.15 as PositiveOffset,
    point.16 as PositiveBucketCounts,
    point.17 as NegativeOffset,
    point.18 as NegativeBucketCounts,
    quantiles.quantile as `ValueAtQuantiles.Quantile`,
    quantiles.value as `ValueAtQuantiles.Value`,
    temporality as AggregationTemporality,
    is_monotonic as IsMonotonic
from points
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
