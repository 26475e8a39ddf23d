create materialized view if not exists tailspan.otel_logs_mv to tailspan.otel_logs as
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

    scopes as (
        select
            rl.resource.attributes.key as resource_keys,
            ss.scope.attributes.key as scope_keys,
            -- Both at once: an expression is analysed at every insert as often as it is written.
            arrayMap(
                v -> text_of(v), arrayConcat(rl.resource.attributes.value, ss.scope.attributes.value)
            ) as texts,
            rl.schema_url as resource_schema_url,
            ss.scope.name as scope_name,
            ss.scope.version as scope_version,
            ss.schema_url as scope_schema_url,
            ss.log_records as records_of_scope
        from tailspan.otlp_logs
        array join resource_logs as rl
        array join rl.scope_logs as ss
    ),

    records as (
        select
            resource_schema_url,
            mapSort(mapFromArrays(resource_keys, arraySlice(texts, 1, length(resource_keys)))) as resource_attributes,
            scope_schema_url,
            scope_name,
            scope_version,
            mapSort(mapFromArrays(scope_keys, arraySlice(texts, length(resource_keys) + 1))) as scope_attributes,
            record,
            arrayMap(v -> text_of(v), arrayPushFront(record.attributes.value, record.body)) as record_texts
        from scopes
        array join records_of_scope as record
    )

select
    fromUnixTimestamp64Nano(
        reinterpretAsInt64(if(record.time_unix_nano = 0, record.observed_time_unix_nano, record.time_unix_nano))
    ) as Timestamp,
    if(match(record.trace_id, '^\0*$'), '', lower(hex(record.trace_id))) as TraceId,
    if(match(record.span_id, '^\0*$'), '', lower(hex(record.span_id))) as SpanId,
    toUInt8(bitAnd(record.flags, 255)) as TraceFlags,
    toLowCardinality(record.severity_text) as SeverityText,
    if(record.severity_number between 0 and 255, toUInt8(record.severity_number), 0) as SeverityNumber,
    toLowCardinality(resource_attributes['service.name']) as ServiceName,
    record_texts[1] as Body,
    toLowCardinality(resource_schema_url) as ResourceSchemaUrl,
    resource_attributes as ResourceAttributes,
    toLowCardinality(scope_schema_url) as ScopeSchemaUrl,
    scope_name as ScopeName,
    toLowCardinality(scope_version) as ScopeVersion,
    scope_attributes as ScopeAttributes,
    mapSort(mapFromArrays(record.attributes.key, arrayPopFront(record_texts))) as LogAttributes,
    record.event_name as EventName
from records
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
