create materialized view if not exists tailspan.spans_mv to tailspan.spans as
with
    (
        v -> concat(
            toString(v.value),
            ':',
            v.string_value,
            v.bytes_value,
            v.array_value,
            v.kvlist_value,
            multiIf(
                v.value = 'int', toString(v.int_value),
                v.value = 'double', toString(v.double_value),
                v.value = 'bool', toString(v.bool_value),
                ''
            )
        )
    ) as tagged,

    resources as (
        select
            toLowCardinality(rs.resource.attributes.value.string_value[
                indexOf(rs.resource.attributes.key, 'service.name')
            ]) as service,
            toLowCardinality(rs.resource.attributes.value.string_value[
                indexOf(rs.resource.attributes.key, 'service.instance.id')
            ]) as instance,
            toLowCardinality(toString(
                arrayZip(rs.resource.attributes.key, arrayMap(x -> tagged(x), rs.resource.attributes.value))
            )) as resource,
            rs.resource.dropped_attributes_count as resource_dropped_attributes,
            rs.resource.entity_refs as resource_entity_refs,
            toLowCardinality(rs.schema_url) as resource_schema_url,
            rs.scope_spans as scopes_of_resource
        from tailspan.otlp_traces
        array join resource_spans as rs
    ),

    scopes as (
        select
            service,
            instance,
            resource,
            resource_dropped_attributes,
            resource_entity_refs,
            resource_schema_url,
            toLowCardinality(ss.scope.name) as scope_name,
            toLowCardinality(ss.scope.version) as scope_version,
            toLowCardinality(toString(
                arrayZip(ss.scope.attributes.key, arrayMap(x -> tagged(x), ss.scope.attributes.value))
            )) as scope,
            ss.scope.dropped_attributes_count as scope_dropped_attributes,
            toLowCardinality(ss.schema_url) as scope_schema_url,
            ss.spans as spans_of_scope
        from resources
        array join scopes_of_resource as ss
    ),

    flat_spans as (
        select
            service,
            instance,
            resource,
            resource_dropped_attributes,
            resource_entity_refs,
            resource_schema_url,
            scope_name,
            scope_version,
            scope,
            scope_dropped_attributes,
            scope_schema_url,
            span.trace_id as sent_trace_id,
            span.span_id as sent_span_id,
            span.parent_span_id as sent_parent_span_id,
            span.trace_state as trace_state,
            span.flags as flags,
            span.name as name,
            span.kind as sent_kind,
            span.start_time_unix_nano as start_ns,
            span.end_time_unix_nano as end_ns,
            span.status.code as sent_status_code,
            span.status.message as status_message,
            span.dropped_attributes_count as dropped_attributes,
            span.events as span_events,
            span.dropped_events_count as dropped_events,
            span.links as span_links,
            span.dropped_links_count as dropped_links,
            span.attributes.value as vals,
            span.attributes.key as keys -- noqa: PRS
        from scopes
        array join spans_of_scope as span
    ),

    located_keys as (
        select
            *,
            vals.value as kinds,
            vals.string_value as strings,
            vals.int_value as ints,
            vals.double_value as doubles,
            indexOf(keys, 'tailspan.role') as role_at,
            indexOf(keys, 'tailspan.stage') as stage_at,
            indexOf(keys, 'gen_ai.request.model') as model_at,
            indexOf(keys, 'gen_ai.response.id') as request_id_at,
            indexOf(keys, 'tailspan.engine.id') as engine_id_at,
            indexOf(keys, 'tailspan.step.first') as first_step_at,
            indexOf(keys, 'tailspan.step.last') as last_step_at,
            indexOf(keys, 'tailspan.step.number') as step_at,
            indexOf(keys, 'gen_ai.usage.input_tokens') as input_tokens_at,
            indexOf(keys, 'gen_ai.usage.output_tokens') as output_tokens_at,
            indexOf(keys, 'tailspan.busy_ns') as busy_ns_at,
            indexOf(keys, 'tailspan.gpu_ns') as gpu_ns_at,
            indexOf(keys, 'tailspan.unattributed_ns') as unattributed_ns_at,
            indexOf(keys, 'tailspan.ttft_ns') as ttft_ns_at,
            indexOf(keys, 'tailspan.weight') as weight_at
        from flat_spans
    ),

    promoted as (
        select
            *,
            strings[role_at] as role,
            strings[stage_at] as stage,
            strings[model_at] as model,
            strings[request_id_at] as request_id,
            strings[engine_id_at] as engine_id,
            ints[first_step_at] as first_step,
            ints[last_step_at] as last_step,
            ints[step_at] as step,
            ints[input_tokens_at] as input_tokens,
            ints[output_tokens_at] as output_tokens,
            ints[busy_ns_at] as busy_ns,
            if(kinds[gpu_ns_at] = 'int', ints[gpu_ns_at], -1) as gpu_ns,
            ints[unattributed_ns_at] as unattributed_ns,
            ints[ttft_ns_at] as ttft_ns,
            if(isFinite(doubles[weight_at]), greatest(doubles[weight_at], 1.0), 1.0) as weight,
            [
                if(role != '', role_at, 0),
                if(stage != '', stage_at, 0),
                if(model != '', model_at, 0),
                if(request_id != '', request_id_at, 0),
                if(engine_id != '', engine_id_at, 0),
                if(first_step != 0, first_step_at, 0),
                if(last_step != 0, last_step_at, 0),
                if(step != 0, step_at, 0),
                if(input_tokens != 0, input_tokens_at, 0),
                if(output_tokens != 0, output_tokens_at, 0),
                if(busy_ns != 0, busy_ns_at, 0),
                if(gpu_ns != -1, gpu_ns_at, 0),
                if(unattributed_ns != 0, unattributed_ns_at, 0),
                if(ttft_ns != 0, ttft_ns_at, 0),
                if(weight != 1.0, weight_at, 0)
            ] as taken,
            toFixedString(substring(sent_trace_id, 1, 16), 16) as trace_id,
            toFixedString(substring(sent_span_id, 1, 8), 8) as span_id,
            toFixedString(substring(sent_parent_span_id, 1, 8), 8) as parent_span_id
        from located_keys
    ),

    sorted_out as (
        select
            *,
            arrayMap(
                (kind, position) -> if(has(taken, position), -1, toInt8(kind)), kinds, arrayEnumerate(kinds)
            ) as rest,
            (length(sent_trace_id) = 16) * (trace_id != toFixedString('', 16)) + empty(sent_trace_id)
                + (length(sent_span_id) = 8) * (span_id != toFixedString('', 8)) + empty(sent_span_id)
                + (length(sent_parent_span_id) = 8) * (parent_span_id != toFixedString('', 8))
                + empty(sent_parent_span_id)
                + (toInt8(sent_kind) = sent_kind)
                + (toInt8(sent_status_code) = sent_status_code) = 5 as columns_are_exact
        from promoted
    )

select
    trace_id,
    span_id,
    parent_span_id,
    trace_state,
    flags,
    service,
    instance,
    toLowCardinality(name) as name,
    toInt8(sent_kind) as kind,
    fromUnixTimestamp64Nano(reinterpretAsInt64(start_ns), 'UTC') as start,
    toInt64(end_ns - start_ns) as duration_ns,
    toInt8(sent_status_code) as status_code,
    status_message,
    toLowCardinality(role) as role,
    toLowCardinality(stage) as stage,
    toLowCardinality(model) as model,
    request_id,
    toLowCardinality(engine_id) as engine_id,
    first_step,
    last_step,
    step,
    input_tokens,
    output_tokens,
    busy_ns,
    gpu_ns,
    unattributed_ns,
    ttft_ns,
    weight,
    mapFromArrays(arrayFilter((k, t) -> t = 1, keys, rest), arrayFilter((v, t) -> t = 1, strings, rest))
        as attributes_string,
    mapFromArrays(arrayFilter((k, t) -> t = 3, keys, rest), arrayFilter((v, t) -> t = 3, ints, rest))
        as attributes_int,
    mapFromArrays(arrayFilter((k, t) -> t = 4, keys, rest), arrayFilter((v, t) -> t = 4, doubles, rest))
        as attributes_double,
    mapFromArrays(arrayFilter((k, t) -> t = 2, keys, rest), arrayFilter((v, t) -> t = 2, vals.bool_value, rest))
        as attributes_bool,
    mapFromArrays(
        arrayConcat(
            arrayFilter((k, t) -> t in (0, 5, 6, 7), keys, rest),
            if(columns_are_exact, [], ['trace_id', 'span_id', 'parent_span_id', 'kind', 'status_code'])
        ),
        arrayConcat(
            arrayMap(v -> tagged(v), arrayFilter((v, t) -> t in (0, 5, 6, 7), vals, rest)),
            if(
                columns_are_exact,
                [],
                [
                    concat('original:', sent_trace_id),
                    concat('original:', sent_span_id),
                    concat('original:', sent_parent_span_id),
                    concat('original:', toString(sent_kind)),
                    concat('original:', toString(sent_status_code))
                ]
            )
        )
    ) as attributes_other,
    dropped_attributes,
    arrayMap(t -> fromUnixTimestamp64Nano(reinterpretAsInt64(t), 'UTC'), span_events.time_unix_nano) as `events.time`,
    span_events.name as `events.name`,
    arrayMap(e -> mapFromArrays(e.key, arrayMap(v -> tagged(v), e.value)), span_events.attributes)
        as `events.attributes`,
    span_events.dropped_attributes_count as `events.dropped_attributes`,
    dropped_events,
    span_links.trace_id as `links.trace_id`,
    span_links.span_id as `links.span_id`,
    span_links.trace_state as `links.trace_state`,
    arrayMap(l -> mapFromArrays(l.key, arrayMap(v -> tagged(v), l.value)), span_links.attributes)
        as `links.attributes`,
    span_links.dropped_attributes_count as `links.dropped_attributes`,
    span_links.flags as `links.flags`,
    dropped_links,
    resource,
    resource_dropped_attributes,
    resource_entity_refs,
    resource_schema_url,
    scope_name,
    scope_version,
    scope,
    scope_dropped_attributes,
    scope_schema_url
from sorted_out
