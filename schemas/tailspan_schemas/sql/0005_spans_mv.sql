create materialized view if not exists tailspan.spans_mv to tailspan.spans as
-- Every insert analyses this text anew, which costs as much as some thousand spans. Hence its style: `tupleElement`
-- instead of a dot (a third of the cost), few lambdas, no conversion that the table does by itself, and a level for
-- what many columns need, as an alias is analysed wherever it is used.
-- An ARRAY JOIN copies what is beside it for every element, so that no whole ResourceSpans may be beside its spans.
with
    (
        v -> concat(
            toString(tupleElement(v, 'value')),
            ':',
            tupleElement(v, 'string_value'),
            tupleElement(v, 'bytes_value'),
            tupleElement(v, 'array_value'),
            tupleElement(v, 'kvlist_value'),
            multiIf(
                tupleElement(v, 'value') = 'int', toString(tupleElement(v, 'int_value')),
                tupleElement(v, 'value') = 'double', toString(tupleElement(v, 'double_value')),
                tupleElement(v, 'value') = 'bool', toString(tupleElement(v, 'bool_value')),
                ''
            )
        )
    ) as tagged,

    resources as (
        select
            tupleElement(sent, 'attributes') as attributes,
            tupleElement(attributes, 'key') as key_names,
            tupleElement(attributes, 'value') as vals,
            tupleElement(vals, 'string_value') as strings,
            toLowCardinality(strings[indexOf(key_names, 'service.name')]) as service,
            toLowCardinality(strings[indexOf(key_names, 'service.instance.id')]) as instance,
            toLowCardinality(toString(arrayZip(key_names, arrayMap(v -> tagged(v), vals)))) as resource,
            tupleElement(sent, 'dropped_attributes_count') as resource_dropped_attributes,
            tupleElement(sent, 'entity_refs') as resource_entity_refs,
            toLowCardinality(schema_url) as resource_schema_url,
            scopes_of_resource
        from tailspan.otlp_traces
        array join
            tupleElement(resource_spans, 'resource') as sent,
            tupleElement(resource_spans, 'schema_url') as schema_url,
            tupleElement(resource_spans, 'scope_spans') as scopes_of_resource
    ),

    spans_sent as (
        select
            span,
            service,
            instance,
            resource,
            resource_dropped_attributes,
            resource_entity_refs,
            resource_schema_url,
            sent_scope,
            scope_schema_url,
            tupleElement(span, 'attributes') as attributes,
            tupleElement(attributes, 'key') as key_names,
            tupleElement(attributes, 'value') as vals,
            tupleElement(vals, 'value') as kinds,
            tupleElement(vals, 'string_value') as strings,
            tupleElement(vals, 'int_value') as ints,
            tupleElement(vals, 'double_value') as doubles,
            -- For each attribute the number of its column, 0 if it has none.
            arrayMap(
                key -> transform(
                    key,
                    [
                        'tailspan.role', 'tailspan.stage', 'gen_ai.request.model', 'gen_ai.response.id',
                        'tailspan.engine.id', 'tailspan.step.first', 'tailspan.step.last', 'tailspan.step.number',
                        'gen_ai.usage.input_tokens', 'gen_ai.usage.output_tokens', 'tailspan.busy_ns',
                        'tailspan.gpu_ns', 'tailspan.unattributed_ns', 'tailspan.ttft_ns', 'tailspan.weight'
                    ],
                    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
                    0
                ),
                key_names
            ) as places,
            -- The kind of each attribute as a number, -1 where it has a column of its own (see `promoted.py`).
            arrayMap(
                (kind, place, occurrence, string, int, double) -> if(
                    occurrence = 1 and multiIf(
                        kind = 1, place between 1 and 5 and string != '',
                        kind = 3, place between 6 and 14 and int != -(place = 12),
                        kind = 4 and place = 15 and double > 1 and double <= 1e9
                    ),
                    -1,
                    kind
                ),
                cast(kinds, 'Array(Int8)'), places, arrayEnumerateUniq(places), strings, ints, doubles
            ) as rest
        from resources
        array join
            tupleElement(scopes_of_resource, 'scope') as sent_scope,
            tupleElement(scopes_of_resource, 'schema_url') as scope_schema_url,
            tupleElement(scopes_of_resource, 'spans') as spans_of_scope
        array join spans_of_scope as span
    ),

    indexOf(places, 12) as gpu_at,
    doubles[indexOf(places, 15)] as sent_weight,
    tupleElement(span, 'events') as span_events,
    tupleElement(span, 'links') as span_links,
    tupleElement(span, 'status') as status,
    tupleElement(span, 'start_time_unix_nano') as start_ns,
    tupleElement(span, 'trace_id') as sent_trace_id,
    tupleElement(span, 'span_id') as sent_span_id,
    tupleElement(span, 'parent_span_id') as sent_parent_span_id,
    tupleElement(span, 'kind') as sent_kind,
    tupleElement(status, 'code') as sent_status_code,
    (length(sent_trace_id) = 16) * (sent_trace_id != '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0') + empty(sent_trace_id)
        + (length(sent_span_id) = 8) * (sent_span_id != '\0\0\0\0\0\0\0\0') + empty(sent_span_id)
        + (length(sent_parent_span_id) = 8) * (sent_parent_span_id != '\0\0\0\0\0\0\0\0')
        + empty(sent_parent_span_id)
        + (toInt8(sent_kind) = sent_kind)
        + (toInt8(sent_status_code) = sent_status_code) = 5 as columns_are_exact,
    tupleElement(sent_scope, 'attributes') as scope_attributes,
    arrayMap(
        part -> arrayZip(tupleElement(part, 'key'), arrayMap(v -> tagged(v), tupleElement(part, 'value'))),
        arrayConcat(
            [scope_attributes, arrayFilter((pair, kind) -> kind in (0, 5, 6, 7), attributes, rest)],
            tupleElement(span_events, 'attributes'),
            tupleElement(span_links, 'attributes')
        )
    ) as parts,
    length(tupleElement(span_events, 'name')) as event_count

select
    toFixedString(substring(sent_trace_id, 1, 16), 16) as trace_id,
    toFixedString(substring(sent_span_id, 1, 8), 8) as span_id,
    toFixedString(substring(sent_parent_span_id, 1, 8), 8) as parent_span_id,
    tupleElement(span, 'trace_state') as trace_state,
    tupleElement(span, 'flags') as flags,
    service,
    instance,
    tupleElement(span, 'name') as name,
    toInt8(sent_kind) as kind,
    fromUnixTimestamp64Nano(start_ns, 'UTC') as start,
    tupleElement(span, 'end_time_unix_nano') - start_ns as duration_ns,
    toInt8(sent_status_code) as status_code,
    tupleElement(status, 'message') as status_message,
    strings[indexOf(places, 1)] as role,
    strings[indexOf(places, 2)] as stage,
    strings[indexOf(places, 3)] as model,
    strings[indexOf(places, 4)] as request_id,
    strings[indexOf(places, 5)] as engine_id,
    ints[indexOf(places, 6)] as first_step,
    ints[indexOf(places, 7)] as last_step,
    ints[indexOf(places, 8)] as step,
    ints[indexOf(places, 9)] as input_tokens,
    ints[indexOf(places, 10)] as output_tokens,
    ints[indexOf(places, 11)] as busy_ns,
    if(kinds[gpu_at] = 'int', ints[gpu_at], -1) as gpu_ns,
    ints[indexOf(places, 13)] as unattributed_ns,
    ints[indexOf(places, 14)] as ttft_ns,
    -- A weight is at most 1e9: one broken sender must not drown the sums of all others.
    if(sent_weight > 1 and sent_weight <= 1e9, sent_weight, 1.0) as weight,
    arrayFilter((pair, kind) -> kind = 1, arrayZip(key_names, strings), rest) as attributes_string,
    arrayFilter((pair, kind) -> kind = 3, arrayZip(key_names, ints), rest) as attributes_int,
    arrayFilter((pair, kind) -> kind = 4, arrayZip(key_names, doubles), rest) as attributes_double,
    arrayFilter((pair, kind) -> kind = 2, arrayZip(key_names, tupleElement(vals, 'bool_value')), rest)
        as attributes_bool,
    arrayConcat(
        parts[2],
        arrayResize(
            arrayZip(
                ['trace_id', 'span_id', 'parent_span_id', 'kind', 'status_code'],
                arrayMap(
                    sent -> concat('original:', sent),
                    [sent_trace_id, sent_span_id, sent_parent_span_id, toString(sent_kind), toString(sent_status_code)]
                )
            ),
            if(columns_are_exact, 0, 5)
        )
    ) as attributes_other,
    tupleElement(span, 'dropped_attributes_count') as dropped_attributes,
    arrayMap(t -> fromUnixTimestamp64Nano(t, 'UTC'), tupleElement(span_events, 'time_unix_nano')) as `events.time`,
    tupleElement(span_events, 'name') as `events.name`,
    arraySlice(parts, 3, event_count) as `events.attributes`,
    tupleElement(span_events, 'dropped_attributes_count') as `events.dropped_attributes`,
    tupleElement(span, 'dropped_events_count') as dropped_events,
    tupleElement(span_links, 'trace_id') as `links.trace_id`,
    tupleElement(span_links, 'span_id') as `links.span_id`,
    tupleElement(span_links, 'trace_state') as `links.trace_state`,
    arraySlice(parts, 3 + event_count) as `links.attributes`,
    tupleElement(span_links, 'dropped_attributes_count') as `links.dropped_attributes`,
    tupleElement(span_links, 'flags') as `links.flags`,
    tupleElement(span, 'dropped_links_count') as dropped_links,
    resource,
    resource_dropped_attributes,
    resource_entity_refs,
    resource_schema_url,
    tupleElement(sent_scope, 'name') as scope_name,
    tupleElement(sent_scope, 'version') as scope_version,
    toString(parts[1]) as scope,
    tupleElement(sent_scope, 'dropped_attributes_count') as scope_dropped_attributes,
    scope_schema_url
from spans_sent
