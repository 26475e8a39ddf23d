create view if not exists tailspan.otel_traces -- noqa: PRS
(
    Timestamp DateTime64(9) comment 'Begin of the span, UTC, ns',
    TraceId String comment 'Trace id, 32 hex digits; zeros if the sender gave none',
    SpanId String comment 'Span id, 16 hex digits; empty if the sender gave none',
    ParentSpanId String comment 'Span id of the parent, 16 hex digits; empty = no parent',
    TraceState String comment 'W3C tracestate',
    SpanName LowCardinality(String) comment 'Span name',
    SpanKind LowCardinality(String) comment 'Unspecified, Internal, Server, Client, Producer or Consumer',
    ServiceName LowCardinality(String) comment 'Resource attribute service.name',
    ResourceAttributes Map(LowCardinality(String), String) comment 'Resource attributes as text, by key',
    ScopeName String comment 'Instrumentation scope name',
    ScopeVersion String comment 'Instrumentation scope version',
    SpanAttributes Map(LowCardinality(String), String) comment 'All attributes of the span as text, by key',
    Duration UInt64 comment 'End less begin, ns; 0 where the sender says that the span ended before it began',
    StatusCode LowCardinality(String) comment 'Unset, Ok or Error',
    StatusMessage String comment 'Text of the status',
    `Events.Timestamp` Array(DateTime64(9)) comment 'Times of the events, UTC, ns',
    `Events.Name` Array(LowCardinality(String)) comment 'Names of the events',
    `Events.Attributes` Array(Map(LowCardinality(String), String)) comment 'Attributes of the events as text, by key',
    `Links.TraceId` Array(String) comment 'Trace ids of the linked spans, 32 hex digits',
    `Links.SpanId` Array(String) comment 'Span ids of the linked spans, 16 hex digits',
    `Links.TraceState` Array(String) comment 'W3C tracestate of the links',
    `Links.Attributes` Array(Map(LowCardinality(String), String)) comment 'Attributes of the links as text, by key'
)
as
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

    (tagged -> multiIf(
        startsWith(tagged, 'string:'), substring(tagged, 8),
        startsWith(tagged, 'int:'), substring(tagged, 5),
        startsWith(tagged, 'bool:'), substring(tagged, 6),
        startsWith(tagged, 'double:'), double_text(toFloat64OrZero(substring(tagged, 8))),
        startsWith(tagged, 'bytes:'), base64Encode(substring(tagged, 7)),
        match(tagged, '^(array|kvlist):'),
        nested_text(substring(tagged, position(tagged, ':') + 1), startsWith(tagged, 'k')),
        ''
    )) as text_of,

    ((keys, texts) -> cast(arrayZip(keys, texts), 'Map(LowCardinality(String), String)')) as by_key,

    spans_with_texts as (
        select
            *,
            mapKeys(attributes_other) as other_keys,
            arrayMap(pairs -> length(pairs), events.attributes) as event_sizes,
            arrayMap(pairs -> length(pairs), links.attributes) as link_sizes,
            -- All at once: an expression is analysed at every query as often as it is written.
            arrayMap(tagged -> text_of(tagged), arrayConcat(
                mapValues(attributes_other),
                arrayFlatten(arrayMap(pairs -> mapValues(pairs), events.attributes)),
                arrayFlatten(arrayMap(pairs -> mapValues(pairs), links.attributes))
            )) as texts,
            cast(resource, 'Array(Tuple(String, String))') as resource_pairs
        from tailspan.spans
    )

select
    start as Timestamp,
    lower(hex(trace_id)) as TraceId,
    if(span_id = toFixedString('', 8), '', lower(hex(span_id))) as SpanId,
    if(parent_span_id = toFixedString('', 8), '', lower(hex(parent_span_id))) as ParentSpanId,
    trace_state as TraceState,
    name as SpanName,
    transform(kind, [0, 1, 2, 3, 4, 5], ['Unspecified', 'Internal', 'Server', 'Client', 'Producer', 'Consumer'], '')
        as SpanKind,
    service as ServiceName,
    by_key(
        resource_pairs.1, arrayMap(tagged -> text_of(tagged), resource_pairs.2)
    ) as ResourceAttributes,
    scope_name as ScopeName,
    scope_version as ScopeVersion,
    cast(
        arrayConcat(
            arrayFilter(pair -> pair.2 != '', [
                ('tailspan.role', toString(role)),
                ('tailspan.stage', toString(stage)),
                ('gen_ai.request.model', toString(model)),
                ('gen_ai.response.id', toString(request_id)),
                ('tailspan.engine.id', toString(engine_id)),
                ('tailspan.step.first', if(first_step = 0, '', toString(first_step))),
                ('tailspan.step.last', if(last_step = 0, '', toString(last_step))),
                ('tailspan.step.number', if(step = 0, '', toString(step))),
                ('gen_ai.usage.input_tokens', if(input_tokens = 0, '', toString(input_tokens))),
                ('gen_ai.usage.output_tokens', if(output_tokens = 0, '', toString(output_tokens))),
                ('tailspan.busy_ns', if(busy_ns = 0, '', toString(busy_ns))),
                ('tailspan.gpu_ns', if(gpu_ns = -1, '', toString(gpu_ns))),
                ('tailspan.unattributed_ns', if(unattributed_ns = 0, '', toString(unattributed_ns))),
                ('tailspan.ttft_ns', if(ttft_ns = 0, '', toString(ttft_ns))),
                ('tailspan.weight', if(weight = 1, '', double_text(weight)))
            ]),
            cast(attributes_string, 'Array(Tuple(String, String))'),
            arrayMap(pair -> (pair.1, toString(pair.2)), cast(attributes_int, 'Array(Tuple(String, Int64))')),
            arrayMap(pair -> (pair.1, double_text(pair.2)), cast(attributes_double, 'Array(Tuple(String, Float64))')),
            arrayMap(pair -> (pair.1, toString(pair.2)), cast(attributes_bool, 'Array(Tuple(String, Bool))')),
            arrayFilter(
                (pair, tagged) -> not startsWith(tagged, 'original:'),
                arrayZip(other_keys, arraySlice(texts, 1, length(other_keys))),
                mapValues(attributes_other)
            )
        ),
        'Map(LowCardinality(String), String)'
    ) as SpanAttributes,
    toUInt64(greatest(duration_ns, 0)) as Duration,
    transform(status_code, [0, 1, 2], ['Unset', 'Ok', 'Error'], '') as StatusCode,
    status_message as StatusMessage,
    events.time as `Events.Timestamp`,
    events.name as `Events.Name`,
    arrayMap(
        (pairs, size, last) -> by_key(
            mapKeys(pairs), arraySlice(texts, length(other_keys) + last - size + 1, size)
        ),
        events.attributes, event_sizes, arrayCumSum(event_sizes)
    ) as `Events.Attributes`,
    arrayMap(id -> lower(hex(id)), links.trace_id) as `Links.TraceId`,
    arrayMap(id -> lower(hex(id)), links.span_id) as `Links.SpanId`,
    links.trace_state as `Links.TraceState`,
    arrayMap(
        (pairs, size, last) -> by_key(
            mapKeys(pairs), arraySlice(texts, length(other_keys) + arraySum(event_sizes) + last - size + 1, size)
        ),
        links.attributes, link_sizes, arrayCumSum(link_sizes)
    ) as `Links.Attributes`
from spans_with_texts
comment 'Every span with the columns of the OpenTelemetry Collector''s ClickHouse exporter, for tools that know those'
-- sqlfluff:rules:capitalisation.identifiers:unquoted_identifiers_policy:none
