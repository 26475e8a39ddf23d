"""A span sent by any OpenTelemetry SDK is stored with every field and can be rebuilt from its row."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from tailspan import attributes
from tailspan_schemas.promoted import PROMOTED
from tailspan_schemas.rows import select_spans, to_otlp
from tests.support.collector import RunningCollector, wait_until
from tests.support.otlp_messages import comparable, single_spans

RESOURCES, SPANS = 10, 50_000


class RecordingExporter(OTLPSpanExporter):
    """The SDK's own exporter, which also keeps what it sends."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint=endpoint, insecure=True)
        self.sent: list[ExportTraceServiceRequest] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sent.append(encode_spans(spans))
        return super().export(spans)


def read_back(collector: RunningCollector, condition: str = "1") -> list[ResourceSpans]:
    """Rebuild every stored span that meets a condition."""
    formats = {"String": "bytes", "FixedString": "bytes"}
    result = collector.client().query(select_spans(condition), query_formats=formats)
    return [to_otlp(row) for row in result.named_results()]


def sdk_program(endpoint: str) -> list[ExportTraceServiceRequest]:
    """Emit spans of every shape that the SDK can make; return what was sent."""
    sent: list[ExportTraceServiceRequest] = []
    for number in range(RESOURCES):
        exporter = RecordingExporter(endpoint)
        resource = Resource({"service.name": f"service-{number}", "number": number, "rates": [0.5, 1.5]})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=SPANS, max_export_batch_size=512, schedule_delay_millis=100)
        )
        tracer = provider.get_tracer("library", f"1.{number}", "https://example.org/schema", {"scope.key": number})
        link_context = SpanContext(7, 9, True, TraceFlags(1), TraceState([("vendor", "x")]))
        for index in range(SPANS // RESOURCES):
            span = tracer.start_span(
                f"name-{index % 7}",
                kind=list(SpanKind)[index % 5],
                attributes={
                    "text": f"value {index} ü",
                    "truth": index % 2 == 0,
                    "count": index,
                    "ratio": index / 7,
                    attributes.ROLE: attributes.ROLE_STAGE,
                    attributes.STAGE: "decode",
                    attributes.BUSY_NS: index,
                },
                links=[Link(link_context, {"link.key": [1, 2]})] if index % 5 == 0 else (),
            )
            if index % 3 == 0:
                span.set_attributes(
                    {"texts": ["a", "", "c"], "counts": [1, -2], "ratios": [0.1], "truths": [True, False]}
                )
                span.set_attribute("nested", {"inner": {"deep": [1, "two", {"three": 3.0}]}, "empty": []})  # type: ignore[dict-item]
                span.set_attribute("raw", b"\x00\xff")  # type: ignore[arg-type]
                span.add_event("event", {"text": "t", "n": 1, "list": ["x"]})
            if index % 4 == 0:
                span.set_status(StatusCode.ERROR, "went wrong")
            span.end()
        assert provider.force_flush()
        provider.shutdown()
        sent += exporter.sent
    return sent


def test_fifty_thousand_sdk_spans_round_trip(shared_collector: RunningCollector) -> None:
    """50,000 spans of 10 resources from a plain SDK program come back equal field by field, in under a minute."""
    begin = time.monotonic()
    sent = sdk_program(shared_collector.otlp_endpoint)
    expected = {single.scope_spans[0].spans[0].span_id: single for request in sent for single in single_spans(request)}
    assert len(expected) == SPANS
    assert shared_collector.wait_rows(SPANS) == SPANS
    stored = read_back(shared_collector, "startsWith(service, 'service-')")
    differences = [
        single
        for single in stored
        if comparable(single) != comparable(expected.pop(single.scope_spans[0].spans[0].span_id))
    ]
    assert not differences
    assert not expected
    assert time.monotonic() - begin < 60


keys = st.one_of(st.sampled_from([item.key for item in PROMOTED]), st.sampled_from(["a", "b", ""]), st.text(max_size=8))
texts = st.one_of(st.just(""), st.text(max_size=20))
int64 = st.one_of(st.sampled_from([0, -1, 1, -(2**63), 2**63 - 1]), st.integers(-(2**63), 2**63 - 1))
scalars = st.one_of(
    st.builds(AnyValue),
    st.builds(AnyValue, string_value=texts),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.builds(AnyValue, int_value=int64),
    st.builds(AnyValue, double_value=st.floats(allow_nan=False)),
    st.builds(AnyValue, bytes_value=st.binary(max_size=20)),
)


def _array(values: list[AnyValue]) -> AnyValue:
    value = AnyValue()
    value.array_value.SetInParent()
    value.array_value.values.extend(values)
    return value


def _kvlist(pairs: list[KeyValue]) -> AnyValue:
    value = AnyValue()
    value.kvlist_value.SetInParent()
    value.kvlist_value.values.extend(pairs)
    return value


any_values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(_array),
        st.lists(st.builds(KeyValue, key=texts, value=inner), max_size=3).map(_kvlist),
    ),
    max_leaves=8,
)
attribute_lists = st.lists(st.builds(KeyValue, key=keys, value=any_values), max_size=6)
uint32, uint64 = st.integers(0, 2**32 - 1), st.one_of(st.just(0), st.integers(0, 2**64 - 1))
real_times = st.integers(1_600_000_000_000_000_000, 1_900_000_000_000_000_000)
ids = st.one_of(st.binary(min_size=16, max_size=16), st.binary(max_size=20), st.just(b""), st.just(bytes(16)))
span_ids = st.one_of(st.binary(min_size=8, max_size=8), st.binary(max_size=12), st.just(b""), st.just(bytes(8)))
events = st.builds(
    Span.Event,
    time_unix_nano=st.one_of(real_times, uint64),
    name=texts,
    attributes=attribute_lists,
    dropped_attributes_count=uint32,
)
links = st.builds(
    Span.Link,
    trace_id=ids,
    span_id=span_ids,
    trace_state=texts,
    attributes=attribute_lists,
    dropped_attributes_count=uint32,
    flags=uint32,
)
spans = st.builds(
    Span,
    trace_id=ids,
    span_id=span_ids,
    parent_span_id=span_ids,
    name=texts,
    flags=uint32,
    kind=st.one_of(st.integers(0, 5), st.integers(-(2**31), 2**31 - 1)),
    start_time_unix_nano=st.one_of(real_times, uint64),
    end_time_unix_nano=st.one_of(real_times, uint64),
    attributes=attribute_lists,
    dropped_attributes_count=uint32,
    events=st.lists(events, max_size=2),
    dropped_events_count=uint32,
    links=st.lists(links, max_size=2),
    dropped_links_count=uint32,
    status=st.builds(Status, message=texts, code=st.one_of(st.integers(0, 2), st.integers(-(2**31), 2**31 - 1))),
)


@st.composite
def export_requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    """Requests with every field that the OTLP schema has, at its limits."""
    message = ExportTraceServiceRequest()
    for _ in range(draw(st.integers(1, 2))):
        resource_spans = message.resource_spans.add(schema_url=draw(texts))
        resource_spans.resource.attributes.extend(draw(attribute_lists))
        resource_spans.resource.dropped_attributes_count = draw(uint32)
        for _ in range(draw(st.integers(1, 2))):
            scope_spans = resource_spans.scope_spans.add(schema_url=draw(texts))
            scope_spans.scope.name, scope_spans.scope.version = draw(texts), draw(texts)
            scope_spans.scope.attributes.extend(draw(attribute_lists))
            scope_spans.scope.dropped_attributes_count = draw(uint32)
            scope_spans.spans.extend(draw(st.lists(spans, min_size=1, max_size=3)))
    return message


examples = iter(range(1_000_000))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(message=export_requests())
def test_any_otlp_message_round_trips(shared_collector: RunningCollector, message: ExportTraceServiceRequest) -> None:
    """Any OTLP message comes back equal: values of every type and depth, odd ids, repeated keys, extreme numbers."""
    marker = f"example-{next(examples)}"
    for number, span in enumerate(_spans(message)):
        span.trace_state = f"{marker}-{number}"
    shared_collector.export(message.SerializeToString())
    expected = sorted(comparable(single) for single in single_spans(message))
    condition = f"startsWith(trace_state, '{marker}-')"
    found = wait_until(lambda: read_back(shared_collector, condition), lambda rows: len(rows) >= len(expected), 20)
    assert sorted(map(comparable, found)) == expected


def _spans(message: ExportTraceServiceRequest) -> Iterable[Span]:
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            yield from scope_spans.spans


def test_a_promoted_key_of_the_wrong_type_stays_an_attribute(shared_collector: RunningCollector) -> None:
    """A number where tailspan.role should be a string is kept as it came and does not make the span a request."""
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add(trace_state="wrong-type")
    span.attributes.append(KeyValue(key=attributes.ROLE, value=AnyValue(int_value=5)))
    shared_collector.export(message.SerializeToString())
    query = "select role, attributes_int from tailspan.spans where trace_state = 'wrong-type'"
    rows = wait_until(lambda: shared_collector.query(query), bool)
    assert rows == [("", {attributes.ROLE: 5})]
