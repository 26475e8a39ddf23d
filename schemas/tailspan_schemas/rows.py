"""Rebuild the OTLP span that a row of `tailspan.spans` was made of, field by field.

In: rows of `select_spans(...)`, read with every String as bytes. Out: a `ResourceSpans` message that holds one span.
Equal to what was sent, except: attributes may be in another order; a message that is absent and one that is present but
empty (resource, scope, status, AnyValue) are the same; fields that this schema does not know are not kept.

An id of a length that OTLP does not allow (or of zeros only), and a kind or status code outside Int8, do not fit
their columns: then `attributes_other` holds `trace_id`, `span_id`, `parent_span_id`, `kind` and `status_code` with
values of the kind `original`, which no attribute of a sender can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tailspan_schemas.promoted import PROMOTED
from tailspan_schemas.values import to_any_value

Pairs = Iterable[tuple[bytes, bytes]]

_PAIRS = "Array(Tuple(String, String))"
_EXPRESSIONS = {
    "trace_id": "trace_id",
    "span_id": "span_id",
    "parent_span_id": "parent_span_id",
    "trace_state": "trace_state",
    "flags": "flags",
    "name": "name",
    "kind": "kind",
    "start_ns": "reinterpretAsUInt64(toUnixTimestamp64Nano(start))",
    "duration_ns": "duration_ns",
    "status_code": "status_code",
    "status_message": "status_message",
    **{item.column: item.column for item in PROMOTED},
    "strings": f"cast(attributes_string, '{_PAIRS}')",
    "ints": "cast(attributes_int, 'Array(Tuple(String, Int64))')",
    "doubles": "cast(attributes_double, 'Array(Tuple(String, Float64))')",
    "bools": "cast(attributes_bool, 'Array(Tuple(String, Bool))')",
    "others": f"cast(attributes_other, '{_PAIRS}')",
    "dropped_attributes": "dropped_attributes",
    "event_times_ns": "arrayMap(t -> reinterpretAsUInt64(toUnixTimestamp64Nano(t)), events.time)",
    "event_names": "events.name",
    "event_attributes": f"cast(events.attributes, 'Array({_PAIRS})')",
    "event_dropped": "events.dropped_attributes",
    "dropped_events": "dropped_events",
    "link_trace_ids": "links.trace_id",
    "link_span_ids": "links.span_id",
    "link_trace_states": "links.trace_state",
    "link_attributes": f"cast(links.attributes, 'Array({_PAIRS})')",
    "link_dropped": "links.dropped_attributes",
    "link_flags": "links.flags",
    "dropped_links": "dropped_links",
    "resource_pairs": f"cast(resource, '{_PAIRS}')",
    "resource_dropped_attributes": "resource_dropped_attributes",
    "resource_entity_refs": "resource_entity_refs",
    "resource_schema_url": "resource_schema_url",
    "scope_name": "scope_name",
    "scope_version": "scope_version",
    "scope_pairs": f"cast(scope, '{_PAIRS}')",
    "scope_dropped_attributes": "scope_dropped_attributes",
    "scope_schema_url": "scope_schema_url",
}


def select_spans(condition: str = "1", source: str = "tailspan.spans") -> str:
    """Return the SELECT whose rows `to_otlp` takes; `condition` is trusted SQL."""
    columns = ", ".join(f"{expression} as `row.{name}`" for name, expression in _EXPRESSIONS.items())
    return f"select {columns} from {source} where {condition}"  # noqa: S608 (built from the table above)


def to_otlp(row: Mapping[str, Any]) -> ResourceSpans:
    """Rebuild one span with its scope and resource from a row of `select_spans`."""
    values = {name.removeprefix("row."): value for name, value in row.items()}
    message = ResourceSpans(schema_url=_text(values["resource_schema_url"]))
    message.resource.attributes.extend(_tagged(values["resource_pairs"]))
    message.resource.dropped_attributes_count = values["resource_dropped_attributes"]
    for entity in values["resource_entity_refs"]:
        message.resource.entity_refs.add().MergeFromString(entity)
    scope_spans = message.scope_spans.add(schema_url=_text(values["scope_schema_url"]))
    scope_spans.scope.name = _text(values["scope_name"])
    scope_spans.scope.version = _text(values["scope_version"])
    scope_spans.scope.attributes.extend(_tagged(values["scope_pairs"]))
    scope_spans.scope.dropped_attributes_count = values["scope_dropped_attributes"]
    _fill_span(scope_spans.spans.add(), values)
    return message


def _fill_span(span: Span, values: Mapping[str, Any]) -> None:
    start_ns: int = values["start_ns"]
    others = list(values["others"])
    originals = {key: value.partition(b":")[2] for key, value in others if value.startswith(b"original:")}
    span.trace_id = originals.get(b"trace_id", _id(values["trace_id"]))
    span.span_id = originals.get(b"span_id", _id(values["span_id"]))
    span.parent_span_id = originals.get(b"parent_span_id", _id(values["parent_span_id"]))
    span.trace_state = _text(values["trace_state"])
    span.flags = values["flags"]
    span.name = _text(values["name"])
    span.kind = int(originals.get(b"kind", values["kind"]))  # type: ignore[assignment]
    span.start_time_unix_nano = start_ns
    span.end_time_unix_nano = (start_ns + values["duration_ns"]) % 2**64
    span.status.code = int(originals.get(b"status_code", values["status_code"]))  # type: ignore[assignment]
    span.status.message = _text(values["status_message"])
    span.attributes.extend(_attributes(values, others))
    span.dropped_attributes_count = values["dropped_attributes"]
    span.dropped_events_count = values["dropped_events"]
    span.dropped_links_count = values["dropped_links"]
    for index, time_ns in enumerate(values["event_times_ns"]):
        event = span.events.add(time_unix_nano=time_ns, name=_text(values["event_names"][index]))
        event.attributes.extend(_tagged(values["event_attributes"][index]))
        event.dropped_attributes_count = values["event_dropped"][index]
    for index, trace_id in enumerate(values["link_trace_ids"]):
        link = span.links.add(trace_id=trace_id, span_id=values["link_span_ids"][index])
        link.trace_state = _text(values["link_trace_states"][index])
        link.attributes.extend(_tagged(values["link_attributes"][index]))
        link.dropped_attributes_count = values["link_dropped"][index]
        link.flags = values["link_flags"][index]


def _attributes(values: Mapping[str, Any], others: Pairs) -> list[KeyValue]:
    found = []
    for item in PROMOTED:
        value = values[item.column]
        if item.kind == "string" and value != b"":
            found.append(_key_value(item.key, string_value=_text(value)))
        elif item.kind == "int" and value != item.absent:
            found.append(_key_value(item.key, int_value=value))
        elif item.kind == "double" and value != item.absent:
            found.append(_key_value(item.key, double_value=value))
    found += [_key_value(_text(key), string_value=_text(value)) for key, value in values["strings"]]
    found += [_key_value(_text(key), int_value=value) for key, value in values["ints"]]
    found += [_key_value(_text(key), double_value=value) for key, value in values["doubles"]]
    found += [_key_value(_text(key), bool_value=value) for key, value in values["bools"]]
    found += _tagged((key, value) for key, value in others if not value.startswith(b"original:"))
    return found


def _key_value(key: str, **value: str | int | float | bool) -> KeyValue:
    return KeyValue(key=key, value=value)  # type: ignore[arg-type]


def _tagged(pairs: Pairs) -> list[KeyValue]:
    return [KeyValue(key=_text(key), value=to_any_value(value)) for key, value in pairs]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _id(raw: bytes) -> bytes:
    return raw if any(raw) else b""
