"""Requests that an engine's own tracing reports become requests and stages, by that engine's definitions, once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailspan import attributes
from tailspan_collector.embedded import Engine
from tailspan_collector.signals import TRACES
from tailspan_queries import catalog
from tests.schemas.otlp import insert, records

BEGIN_NS = 1_765_000_020_000_000_000
MS = 1_000_000
VLLM = ("vllm.tracing.otel", "llm_request")
SGLANG = ("sglang server", " Req 8b177ef8")
LATENCIES = {
    "gen_ai.latency.e2e": 2.0,
    "gen_ai.latency.time_to_first_token": 0.5,
    "gen_ai.latency.time_in_queue": 0.1,
    "gen_ai.latency.time_in_model_prefill": 0.3,
    "gen_ai.latency.time_in_model_decode": 1.4,
    "gen_ai.latency.time_in_model_inference": 1.7,
}
WINDOW = {"since": "2025-12-06 05:00:00", "until": "2025-12-06 07:00:00"}


def span(
    name: tuple[str, str], service: str, latencies: Mapping[str, float] = LATENCIES, **fields: Any
) -> ExportTraceServiceRequest:
    """Return an export request with one request span of an engine: `name` is scope and span name."""
    message = ExportTraceServiceRequest()
    resources = message.resource_spans.add()
    resources.resource.attributes.add(key="service.name").value.string_value = service
    scopes = resources.scope_spans.add()
    scopes.scope.name = name[0]
    trace_id = hashlib.md5(service.encode(), usedforsecurity=False).digest()
    found = {"trace_id": trace_id, "span_id": trace_id[:8], "start_time_unix_nano": BEGIN_NS} | fields
    sent = scopes.spans.add(name=name[1], end_time_unix_nano=BEGIN_NS + 2100 * MS, **found)
    for key, value in latencies.items():
        sent.attributes.add(key=key).value.double_value = value
    sent.attributes.add(key="gen_ai.usage.prompt_tokens").value.int_value = 12
    sent.attributes.add(key="gen_ai.usage.completion_tokens").value.int_value = 34
    sent.attributes.add(key="gen_ai.request.id").value.string_value = f"chatcmpl-{service}"
    sent.attributes.add(key="gen_ai.response.model").value.string_value = "smollm"
    return message


def store(engine: Engine, message: ExportTraceServiceRequest, token: str = "") -> None:
    """Insert an export request."""
    insert(engine, TRACES, message.SerializeToString(), token=token)


def stages(engine: Engine, service: str) -> list[tuple[str, float, float]]:
    """Return name, begin and wall time of each stage, ms, in the order of time."""
    rows = records(
        engine,
        f"select stage, toUnixTimestamp64Nano(start) - {BEGIN_NS} as begin, wall_ns from tailspan.stages "
        f"where service = '{service}' order by start",
    )
    return [(row["stage"], row["begin"] / MS, row["wall_ns"] / MS) for row in rows]


def query(engine: Engine, name: str, service: str, **values: str) -> list[dict[str, Any]]:
    """Run a shipped query for one service; what is not given is the default of its header."""
    shipped = catalog.load(name)
    text = catalog.strip_comments(shipped.sql)
    chosen = {**shipped.defaults, **WINDOW, "service": service, **values}
    for key, kind in shipped.placeholders.items():
        quoted = kind.replace("'", "\\'")
        literal = chosen[key] if kind == "Identifier" else f"cast('{chosen[key]}', '{quoted}')"
        text = text.replace(f"{{{key}:{kind}}}", literal)
    return records(engine, text)


def test_vllm_by_its_definition(engine: Engine) -> None:
    """vLLM: queue, prefill and decode follow each other; prefill ends with the first token; the rest is left over."""
    store(engine, span(VLLM, "vllm"))
    assert stages(engine, "vllm") == [("queue", 100, 100), ("prefill", 200, 300), ("decode", 500, 1400)]
    (row,) = records(
        engine,
        "select e2e_ns, ttft_ns, unattributed_ns, input_tokens, output_tokens, request_id, model, outcome, weight "
        "from tailspan.requests where service = 'vllm'",
    )
    assert row == {
        "e2e_ns": 2000 * MS, "ttft_ns": 500 * MS, "unattributed_ns": 200 * MS, "input_tokens": 12,
        "output_tokens": 34, "request_id": "chatcmpl-vllm", "model": "smollm", "outcome": "ok", "weight": 1,
    }  # fmt: skip


def test_sglang_by_its_definition(engine: Engine) -> None:
    """SGLang: the prefill key includes the queue; where the queue is reported it is cut out, else the stage says so."""
    store(engine, span(SGLANG, "sglang"))
    assert stages(engine, "sglang") == [("queue", 200, 100), ("prefill", 300, 200), ("decode", 500, 1400)]
    without = {key: value for key, value in LATENCIES.items() if not key.endswith("queue")}
    store(engine, span(SGLANG, "sglang 0.5", without))
    assert stages(engine, "sglang 0.5") == [("queue+prefill", 200, 300), ("decode", 500, 1400)]


@pytest.mark.parametrize(
    ("service", "latencies", "expected"),
    [
        ("no token", {"gen_ai.latency.e2e": 1.0}, []),
        ("longer than itself", {**LATENCIES, "gen_ai.latency.e2e": 0.6}, [("queue", 100, 100), ("prefill", 200, 300),
                                                                       ("decode", 500, 100)]),
        ("negative", {**LATENCIES, "gen_ai.latency.time_in_queue": -5.0}, [("prefill", 200, 300),
                                                                        ("decode", 500, 1400)]),
        ("not a number", {**LATENCIES, "gen_ai.latency.time_in_queue": float("nan")}, [("prefill", 200, 300),
                                                                                    ("decode", 500, 1400)]),
    ],
)  # fmt: skip
def test_stages_partition_whatever_the_engine_says(
    engine: Engine, service: str, latencies: Mapping[str, float], expected: list[tuple[str, float, float]]
) -> None:
    """Stages never overlap nor outlast their request, and with `unattributed` they add up to it."""
    store(engine, span(VLLM, service, latencies))
    assert stages(engine, service) == expected
    (row,) = records(engine, f"select e2e_ns, unattributed_ns from tailspan.requests where service = '{service}'")
    assert row["e2e_ns"] / MS == pytest.approx(row["unattributed_ns"] / MS + sum(wall for *_, wall in expected))


@pytest.mark.parametrize("state", ["tailspan=1", "other=2, tailspan=00f067aa", "a=b,tailspan=1"])
def test_a_request_that_tailspan_traces_is_not_counted_twice(engine: Engine, state: str) -> None:
    """An engine's span below tailspan's own, as its tracestate says, is a span and no request; in either order."""
    service = f"both {state}"
    own = span(VLLM, service, {}, span_id=b"\x77" * 8)
    own.resource_spans[0].scope_spans[0].scope.name = attributes.SCOPE_NAME
    own.resource_spans[0].scope_spans[0].spans[0].attributes.append(
        KeyValue(key=attributes.ROLE, value=AnyValue(string_value=attributes.ROLE_REQUEST))
    )
    engines = span(VLLM, service, trace_state=state, parent_span_id=b"\x77" * 8)
    for message in (engines, own) if "other" in state else (own, engines):
        store(engine, message)
    counted = f"from tailspan.stage_minutes where service = '{service}' and stage = 'request'"
    assert engine.rows(f"select sum(count) {counted}") == [["1"]]
    assert engine.rows(f"select count() from tailspan.requests where service = '{service}'") == [["1"]]
    assert engine.rows(f"select count() from tailspan.spans where service = '{service}'") == [["2"]]
    assert engine.rows(f"select count() from tailspan.otel_traces where ServiceName = '{service}'") == [["2"]]


@pytest.mark.parametrize(
    ("scope", "name", "latencies"),
    [("other", "llm_request", LATENCIES), ("vllm", "startup", LATENCIES), ("sglang server", "tokenize", {})],
)
def test_other_spans_are_no_requests(engine: Engine, scope: str, name: str, latencies: Mapping[str, float]) -> None:
    """A span is an engine's request only by scope, name and its end-to-end time, not by an attribute alone."""
    service = f"other {scope} {name}"
    store(engine, span((scope, name), service, latencies))
    assert engine.rows(f"select count() from tailspan.requests where service = '{service}'") == [["0"]]
    assert engine.rows(f"select count() from tailspan.stage_minutes where service = '{service}'") == [["0"]]


def test_the_rollup_is_that_of_equal_requests_of_tailspan(engine: Engine) -> None:
    """Requests of an engine's own tracing give the rows that requests of the same times give which tailspan traced."""
    message = span(VLLM, "equal own")
    spans = message.resource_spans[0].scope_spans[0].spans
    for number in range(1, 200):
        copy = spans.add()
        copy.CopyFrom(spans[0])
        copy.span_id = number.to_bytes(8, "big")
        copy.start_time_unix_nano = BEGIN_NS + number * 900 * MS
        for item in copy.attributes:
            if item.key.startswith("gen_ai.latency."):
                item.value.double_value *= 1 + number / 20
    spans[3].status.code = Status.STATUS_CODE_ERROR
    store(engine, message, "equal own")
    store(engine, message, "equal own")
    store(engine, as_tailspan(engine, "equal own", "equal tailspan"))
    compared = (
        "minute, stage, span_count, count, error_count, input_tokens, output_tokens, wall_sum_ns, wall_max_ns, "
        "gpu_count, "
        "quantilesBFloat16WeightedMerge(0.5, 0.9, 0.95, 0.99, 0.999)(wall_q), "
        "quantilesBFloat16WeightedMerge(0.5, 0.9, 0.95, 0.99, 0.999)(busy_q)"
    )
    text = f"select {compared} from tailspan.stage_minutes where service = '{{}}' group by all order by minute, stage"
    own, traced = (engine.rows(text.format(service)) for service in ("equal own", "equal tailspan"))
    assert len(own) > 10
    assert own == traced


def test_the_rollup_by_the_hour_has_them_once(engine: Engine) -> None:
    """One insert with requests of an engine's own tracing and of tailspan, sent twice: the hours are the minutes."""
    message = span(VLLM, "hours own")
    traced = message.resource_spans[0].scope_spans[0].spans.add(trace_id=b"\x22" * 16, span_id=b"\x22" * 8)
    traced.start_time_unix_nano, traced.end_time_unix_nano = BEGIN_NS, BEGIN_NS + 5 * MS
    traced.attributes.add(key=attributes.ROLE).value.string_value = attributes.ROLE_REQUEST
    traced.attributes.add(key=attributes.GEN_AI_MODEL).value.string_value = "smollm"
    for _ in range(2):
        store(engine, message, "hours own")
    text = (
        "select stage, sum(span_count), sum(count), sum(error_count), sum(input_tokens), sum(output_tokens), "
        "sum(wall_sum_ns), max(wall_max_ns), sum(busy_sum_ns), sum(gpu_count), "
        "quantilesBFloat16WeightedMerge(0.5, 0.9, 0.95, 0.99, 0.999)(wall_q) "
        "from tailspan.{} where service = 'hours own' group by stage order by stage"
    )
    hours = engine.rows(text.format("stage_hours"))
    assert hours == engine.rows(text.format("stage_minutes"))
    assert {row[0]: row[1] for row in hours} == {
        "decode": "1", "prefill": "1", "queue": "1", "request": "2", "unattributed": "2",
    }  # fmt: skip


def as_tailspan(engine: Engine, service: str, other: str) -> ExportTraceServiceRequest:
    """Return the requests and stages of a service as tailspan's instrumentation would send them."""
    message = ExportTraceServiceRequest()
    resources = message.resource_spans.add()
    resources.resource.attributes.add(key="service.name").value.string_value = other
    spans = resources.scope_spans.add().spans
    requests = records(
        engine,
        "select 'request' as role, '' as stage, toUnixTimestamp64Nano(start) as start, e2e_ns as wall, "
        f"unattributed_ns, input_tokens, output_tokens, status_code from tailspan.requests where service = '{service}'",
    )
    parts = records(
        engine,
        "select 'stage' as role, stage, toUnixTimestamp64Nano(start) as start, wall_ns as wall, 0 as unattributed_ns, "
        f"0 as input_tokens, 0 as output_tokens, status_code from tailspan.stages where service = '{service}'",
    )
    for number, row in enumerate(requests + parts, start=1):
        sent = spans.add(trace_id=b"\x11" * 16, span_id=number.to_bytes(8, "big"), start_time_unix_nano=row["start"])
        sent.end_time_unix_nano = row["start"] + row["wall"]
        sent.status.code = row["status_code"]
        for key, value in {attributes.ROLE: row["role"], attributes.STAGE: row["stage"],
                           attributes.GEN_AI_MODEL: "smollm"}.items():  # fmt: skip
            sent.attributes.add(key=key).value.string_value = value
        for key, number_of in {attributes.UNATTRIBUTED_NS: row["unattributed_ns"],
                               attributes.GEN_AI_INPUT_TOKENS: row["input_tokens"],
                               attributes.GEN_AI_OUTPUT_TOKENS: row["output_tokens"]}.items():  # fmt: skip
            sent.attributes.add(key=key).value.int_value = number_of
    return message


def test_reports_show_them(engine: Engine) -> None:
    """The queries behind stages, slowest and trace show an engine's requests with their stages."""
    store(engine, span(VLLM, "reported", kind=Span.SPAN_KIND_SERVER))
    for name in ("stages", "stages_rollup", "tail_share"):
        rows = {row["stage"]: row for row in query(engine, name, "reported")}
        assert list(rows) == ["queue", "prefill", "decode", "unattributed", "request"]
    assert query(engine, "stages", "reported")[2]["wall_sum_ns"] == 1400 * MS
    (slow,) = query(engine, "slowest", "reported")
    assert (slow["dominant_stage"], slow["dominant_ns"], slow["request_id"]) == (
        "decode",
        1400 * MS,
        "chatcmpl-reported",
    )
    (sent,) = query(engine, "trace", "reported", trace_id=slow["trace_id"])
    (traced,) = query(engine, "trace_engine", "reported", trace_id=slow["trace_id"])
    assert (sent["role"], sent["name"], sent["span_id"]) == ("", "llm_request", traced["span_id"])
    assert (traced["e2e_ns"], traced["ttft_ns"]) == (2000 * MS, 500 * MS)
    assert list(zip(traced["stage_names"], traced["walls_ns"], strict=True)) == [
        ("queue", 100 * MS),
        ("prefill", 300 * MS),
        ("decode", 1400 * MS),
    ]
    ids = engine.rows("select lower(hex(span_id)) from tailspan.stages where service = 'reported' order by start")
    assert [[span_id] for span_id in traced["stage_span_ids"]] == ids
