"""The stored sample of traces: whole traces of its parts, every value as in `spans`, and nothing else."""

from __future__ import annotations

import hashlib

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailspan import attributes
from tailspan_collector.embedded import Engine
from tailspan_collector.signals import TRACES
from tests.schemas.otlp import insert

BEGIN_NS = 1_765_000_020_000_000_000
REQUESTS = 200
CHOSEN = "sipHash64(trace_id) % 4096 < 256"


def describe(span: Span, role: str, number: int) -> None:
    """Give a span its role and values of every kind, some without a column."""
    texts = {attributes.ROLE: role, attributes.GEN_AI_MODEL: f"model {number % 3}", "tenant": f"tenant {number % 5}"}
    for key, text in texts.items():
        span.attributes.add(key=key).value.string_value = text
    for key in (attributes.GEN_AI_INPUT_TOKENS, attributes.BUSY_NS, attributes.GPU_NS, "retries"):
        span.attributes.add(key=key).value.int_value = number + 1
    span.attributes.add(key=attributes.WEIGHT).value.double_value = 1 + number / 3
    span.attributes.add(key="temperature").value.double_value = number / 7
    span.attributes.add(key="cached").value.bool_value = number % 2 == 0
    span.status.code = Status.STATUS_CODE_OK if number % 11 else Status.STATUS_CODE_ERROR


@pytest.fixture(scope="module")
def stored(engine: Engine) -> Engine:
    """A database with requests of a request span, a stage and a span of somebody else each, and with engine steps."""
    message = ExportTraceServiceRequest()
    resources = message.resource_spans.add()
    resources.resource.attributes.add(key="service.name").value.string_value = "sampled"
    resources.resource.attributes.add(key="service.instance.id").value.string_value = "worker-1"
    spans = resources.scope_spans.add().spans
    for number in range(REQUESTS):
        trace_id = hashlib.md5(str(number).encode(), usedforsecurity=False).digest()
        for place, role in enumerate((attributes.ROLE_REQUEST, attributes.ROLE_STAGE, "", attributes.ROLE_STEP)):
            span_id = (4 * number + place + 1).to_bytes(8, "big")
            span = spans.add(trace_id=trace_id, span_id=span_id, name=role or "other")
            span.parent_span_id = b"" if place == 0 else (4 * number + 1).to_bytes(8, "big")
            span.start_time_unix_nano = BEGIN_NS + number * 10**9 + place
            span.end_time_unix_nano = span.start_time_unix_nano + 1000 * (number + 1)
            describe(span, role, number)
    insert(engine, TRACES, message.SerializeToString())
    return engine


def test_it_holds_whole_traces_with_every_value(stored: Engine) -> None:
    """Of the chosen traces, all requests and stages are there with the values that `spans` has, weights as they are."""
    rows = stored.rows(
        "select name from system.columns where database = 'tailspan' and table = 'spans_sample' order by position"
    )
    names = [name for (name,) in rows]
    assert {"weight", "whole_weight", "attributes_string", "resource_attributes"} < set(names)
    columns = ", ".join(f"hex({name})" if name.endswith("_id") else name for name in names)
    sample = stored.rows(f"select {columns} from tailspan.spans_sample order by trace_id, span_id")
    assert sample == stored.rows(
        f"select {columns} from tailspan.spans where {CHOSEN} and role in ('request', 'stage') "
        "order by trace_id, span_id"
    )
    assert len(sample) / 2 == pytest.approx(REQUESTS / 16, abs=11)  # three standard deviations
    assert len({row[names.index("weight")] for row in sample}) == len(sample) / 2


def test_a_few_parts_are_read_without_the_others(stored: Engine) -> None:
    """The sample lies in the order of its parts, so that some of them are a range of the primary key."""
    plan = stored.rows(
        "explain indexes = 1 select count() from tailspan.spans_sample where sipHash64(trace_id) % 4096 < 16"
    )
    assert any("modulo(sipHash64(trace_id), 4096) in (-Inf, 15]" in line for (line,) in plan)
