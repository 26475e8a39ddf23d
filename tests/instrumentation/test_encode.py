"""Spans written as OTLP bytes are what the SDK's encoder makes of the same spans, and only travel where they fit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from tailspan import attributes as attr
from tailspan.agent.encode import message, pack
from tailspan.agent.ledger import ledger
from tailspan.agent.otlp import packed_grpc, packed_http, span_exporter
from tailspan.agent.span import Link, Span
from tailspan.agent.span import readable as sdk_span
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.steps import Change
from tests.support.finished import finished, finished_step

RESOURCE = Resource({"service.name": "svc", "cores": 8, "share": 0.5, "on": True, "tags": ["a", "b"]}, "https://schema")


def assert_same(spans: Sequence[Span]) -> None:
    """Compare, byte for byte, both messages as protobuf writes them; a NaN equals itself so."""
    ours = ExportTraceServiceRequest.FromString(message(RESOURCE, [pack(span) for span in spans]))
    theirs = encode_spans([sdk_span(span) for span in spans])
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
items = st.one_of(texts, st.floats(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1))
arrays = st.one_of(*[st.lists(item, max_size=20) for item in (texts, st.floats(), items)]).map(tuple)
values = st.one_of(texts, st.booleans(), st.integers(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), arrays)
maps = st.dictionaries(st.one_of(st.sampled_from(["a", "b", ""]), texts), values, max_size=6)
ids = st.integers(1, (1 << 64) - 1)
trace_ids = st.integers(1, (1 << 128) - 1)
times = st.integers(0, (1 << 64) - 1)


@given(
    st.lists(
        st.builds(
            Span,
            resource=st.just(RESOURCE),
            name=texts,
            trace_id=trace_ids,
            span_id=ids,
            begin_ns=times,
            end_ns=times,
            attributes=maps,
            flags=st.integers(0, 3),
            parent_id=st.one_of(st.just(0), ids),
            is_entry=st.booleans(),
            error=st.one_of(st.none(), texts),
            links=st.lists(st.builds(Link, trace_ids, ids, st.integers(0, 3), maps), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_span_is_encoded_as_by_the_sdk(spans: list[Span]) -> None:
    """Names, ids, times, attributes of every type and size, status and links."""
    assert_same(spans)


def test_equal_values_of_different_types_stay_apart() -> None:
    """1, 1.0 and True are the same key of a dictionary, and three different attributes."""
    for value in (1, 1.0, True, "1", 0, 0.0, False, -0.0, -1, 127, 128, 16383, 16384, (1 << 63) - 1, -(1 << 63)):
        assert_same([Span(RESOURCE, "k", 1, 2, 3, 4, {"k": value, "": "k"})])
        assert_same([Span(RESOURCE, "k", 1, 2, 3, 4, {"one": (value,), "two": (value, 1.0), "three": (value, "1")})])


@given(
    tokens=st.integers(1, 40),
    outcome=st.sampled_from(attr.OUTCOMES),
    error=st.sampled_from(["", "ValueError"]),
    parent=st.one_of(st.just(0), ids),
    weight=st.sampled_from([1.0, 7.5]),
    snapshot=st.booleans(),
    seed=st.integers(0, 1000),
    more=st.dictionaries(st.sampled_from([attr.URL_PATH, attr.GEN_AI_STREAM, attr.GEN_AI_RESPONSE_ID]), values),
)
def test_what_the_agent_builds_is_encoded_as_by_the_sdk(
    tokens: int, outcome: str, error: str, parent: int, weight: float, snapshot: bool, seed: int, more: dict[str, Any]
) -> None:
    """Requests with all their stages, steps with links, and events."""
    builder = SpanBuilder(RESOURCE, 1_700_000_000_000_000_000)
    request = finished(500.0, seed=random.Random(seed), tokens=tokens, outcome=outcome, error=error, parent=parent)
    request.request.attributes.update(more)
    account = ledger(request)
    assert account is not None
    step = finished_step(tokens, idle_ns=seed or None)
    step = step._replace(step=step.step._replace(kv_usage_ratio=0.25), changes=(Change(1 << 100, 5, "join"),))
    spans = builder.request(account, weight, snapshot=snapshot)
    spans += [builder.step(step, weight), builder.event("worker.crash", 5, {attr.WORKER_PID: 7}, [request.request])]
    assert_same(spans)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_installed_sdk_takes_bytes(protocol: str) -> None:
    """Both exporters have the place where spans become bytes; otherwise this says that the fast way is gone."""
    exporter = span_exporter(protocol)
    assert isinstance(exporter.prepare(Span(RESOURCE, "a", 1, 2, 3, 4, {})), bytes)  # type: ignore[attr-defined]
    exporter.shutdown()


def test_a_grpc_exporter_that_translates_elsewhere_is_used_as_it_is() -> None:
    """Without its method for that the standard class stays, and gets the SDK's spans."""

    class Other:
        """A version of the exporter without `_translate_data`."""

    assert packed_grpc(Other) is Other
    assert issubclass(packed_grpc(GrpcExporter), GrpcExporter)


def test_an_http_exporter_without_a_client_for_bytes_gets_the_sdks_spans() -> None:
    """The standard `export` then does everything, as in older versions."""

    class Other:
        """A version of the exporter that has no `_client`."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS if isinstance(spans[0], ReadableSpan) else SpanExportResult.FAILURE

    exporter = packed_http(Other)()
    prepared = exporter.prepare(Span(RESOURCE, "a", 1, 2, 3, 4, {"k": "v"}))
    assert (prepared.name, dict(prepared.attributes)) == ("a", {"k": "v"})
    assert exporter.export([prepared]) is SpanExportResult.SUCCESS
    assert issubclass(packed_http(HttpExporter), HttpExporter)
