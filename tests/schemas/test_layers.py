"""Times of the model's parts on step spans become rows of `layers`; what is malformed is left out and harms nothing."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource

from tailspan import attributes
from tailspan.agent.encode import message, pack
from tailspan.agent.span import Span as AgentSpan
from tailspan.agent.span import readable
from tailspan_collector.embedded import Engine
from tailspan_collector.signals import TRACES
from tests.schemas.otlp import GENERATE, insert, records

BEGIN_NS = 1_765_000_020_000_000_000
NAMES = ("embedding", "0/norm", "0/attention", "1/mlp", "31/experts", "lm_head", "sampler", "other")
TIMES = (0.0, 1.5, 250_000.25, 1e9, 3.0, 1e-3, 12.0, 7.0)


def text(value: str) -> AnyValue:
    """Return a string value."""
    return AnyValue(string_value=value)


def double(value: float) -> AnyValue:
    """Return a double value."""
    return AnyValue(double_value=value)


def array(values: Sequence[AnyValue]) -> AnyValue:
    """Return an array value."""
    return AnyValue(array_value=ArrayValue(values=values))


def names(values: Sequence[str] = NAMES) -> AnyValue:
    """Return the parts as the agent writes them."""
    return array([text(value) for value in values])


def times(values: Sequence[float] = TIMES) -> AnyValue:
    """Return their times as the agent writes them."""
    return array([double(value) for value in values])


def step_span(service: str, parts: AnyValue | None, ns: AnyValue | None, **keys: AnyValue) -> ExportTraceServiceRequest:
    """Return an export request with one step span; `keys` replace attributes by their name in `tailspan.attributes`."""
    sent = ExportTraceServiceRequest()
    resources = sent.resource_spans.add()
    resources.resource.attributes.add(key="service.name", value=text(service))
    span = resources.scope_spans.add().spans.add(
        name="step",
        trace_id=(service.encode() * 16)[:16],
        span_id=(service.encode() * 8)[:8],
        start_time_unix_nano=BEGIN_NS,
        end_time_unix_nano=BEGIN_NS + 2_000_000,
    )
    values = {
        "ROLE": text(attributes.ROLE_STEP),
        "ENGINE_ID": text("engine-1"),
        "GEN_AI_MODEL": text("llama"),
        "STEP_NUMBER": AnyValue(int_value=42),
        "STEP_PREFILL_TOKENS": AnyValue(int_value=0),
        "STEP_DECODE_TOKENS": AnyValue(int_value=3),
        "STEP_REQUESTS": AnyValue(int_value=3),
        "DEVICE": text("cuda"),
        "LAYERS_STEPS": AnyValue(int_value=20),
        "LAYERS_PHASE": text("decode"),
        "LAYERS_MODE": text("graph"),
        "LAYERS_COST_NS": AnyValue(int_value=1234),
    } | keys
    values |= {name: value for name, value in (("LAYERS_PARTS", parts), ("LAYERS_NS", ns)) if value is not None}
    span.attributes.extend(KeyValue(key=getattr(attributes, name), value=value) for name, value in values.items())
    return sent


def store(engine: Engine, request: ExportTraceServiceRequest, token: str = "") -> None:
    """Insert an export request."""
    insert(engine, TRACES, request.SerializeToString(), token=token)


def layers(engine: Engine, service: str) -> list[tuple[int, str, float]]:
    """Return layer, kind and time of each row of a service."""
    found = records(engine, f"select layer, kind, ns from tailspan.layers where service = '{service}'")
    return sorted((row["layer"], row["kind"], row["ns"]) for row in found)


def expected(parts: Sequence[str], ns: Sequence[float]) -> list[tuple[int, str, float]]:
    """Return what rows there should be."""
    pairs = [(part.rpartition("/"), value) for part, value in zip(parts, ns, strict=True)]
    return sorted((int(layer) if slash else -1, kind, value) for (layer, slash, kind), value in pairs)


def count(engine: Engine, table: str, service: str) -> int:
    """Return how many rows a service has in a table."""
    return int(engine.rows(f"select count() from tailspan.{table} where service = '{service}'")[0][0])


def test_each_part_of_a_sampled_step_is_a_row(engine: Engine) -> None:
    """Layer, kind and time of each part, with what is known of the step; a part outside of the layers has layer -1."""
    store(engine, step_span("whole", names(), times()))
    assert layers(engine, "whole") == expected(NAMES, TIMES)
    (row,) = records(
        engine,
        "select distinct lower(hex(trace_id)) as trace_id, lower(hex(span_id)) as span_id, service, instance, model, "
        "engine_id, step, toUnixTimestamp64Nano(start) as start, phase, step_ns, prefill_tokens, decode_tokens, "
        "requests, mode, device, steps, whole_steps, cost_ns from tailspan.layers where service = 'whole'",
    )
    assert row == {
        "trace_id": (b"whole" * 4)[:16].hex(), "span_id": b"wholewho".hex(), "service": "whole", "instance": "",
        "model": "llama", "engine_id": "engine-1", "step": 42, "start": BEGIN_NS, "phase": "decode",
        "step_ns": pytest.approx(sum(TIMES)), "prefill_tokens": 0, "decode_tokens": 3, "requests": 3, "mode": "graph",
        "device": "cuda", "steps": 20, "whole_steps": 20, "cost_ns": 1234,
    }  # fmt: skip


@pytest.mark.parametrize("way", ["agent", "sdk"])
def test_the_agents_own_spans_are_read(engine: Engine, way: str) -> None:
    """Arrays as the agent encodes them, and as the SDK's exporters encode the agent's spans, are read alike."""
    resource = Resource({"service.name": way})
    keys = {attributes.ROLE: attributes.ROLE_STEP, attributes.LAYERS_PARTS: NAMES, attributes.LAYERS_NS: TIMES}
    span = AgentSpan(resource, "step", 7, 9, BEGIN_NS, BEGIN_NS + 5, keys)
    sdk = encode_spans([readable(span)]).SerializeToString()
    insert(engine, TRACES, message(resource, [pack(span)]) if way == "agent" else sdk)
    assert layers(engine, way) == expected(NAMES, TIMES)


def test_a_sampled_span_counts_for_those_left_out(engine: Engine) -> None:
    """A step stands for the steps of its phase since the last sampled one, and that for each span it stands for."""
    store(engine, step_span("weighted", names(), times(), WEIGHT=double(2.5)))
    (row,) = records(engine, "select distinct steps, whole_steps from tailspan.layers where service = 'weighted'")
    assert (row["steps"], row["whole_steps"]) == (50.0, 50)


def test_what_is_left_out_of_a_step_has_a_default(engine: Engine) -> None:
    """Without them a step stands for itself, its phase follows from its tokens, and clock and mode are not known."""
    nothing = dict.fromkeys(("LAYERS_STEPS", "LAYERS_PHASE", "LAYERS_MODE", "DEVICE", "LAYERS_COST_NS"), AnyValue())
    store(engine, step_span("bare", names(), times(), STEP_PREFILL_TOKENS=AnyValue(int_value=7), **nothing))
    columns = "phase, steps, mode, device, cost_ns"
    (row,) = records(engine, f"select distinct {columns} from tailspan.layers where service = 'bare'")
    assert row == {"phase": "prefill", "steps": 1, "mode": "", "device": "", "cost_ns": 0}
    store(engine, step_span("boasting", names(), times(), LAYERS_STEPS=AnyValue(int_value=2**62)))
    assert engine.rows("select distinct steps from tailspan.layers where service = 'boasting'") == [["1000000"]]


def test_a_step_without_times_has_no_rows(engine: Engine) -> None:
    """Steps that were not sampled, and other spans that carry the keys, leave nothing in `layers`."""
    store(engine, step_span("plain", None, None))
    store(engine, step_span("no step", names(), times(), ROLE=text(attributes.ROLE_STAGE)))
    for service in ("plain", "no step"):
        assert count(engine, "spans", service) == 1
        assert layers(engine, service) == []


def test_a_repeated_insert_is_stored_once(engine: Engine) -> None:
    """The deduplication token holds for the rows of layers too."""
    for _ in range(3):
        store(engine, step_span("again", names(), times()), token="again-1")
    assert len(layers(engine, "again")) == len(NAMES)


POISON = {
    "more names than times": (names(), times(TIMES[1:])),
    "more times than names": (names(NAMES[1:]), times()),
    "no names": (None, times()),
    "no arrays": (text("0/mlp"), double(1.0)),
    "empty arrays": (array([]), array([])),
    "ints": (names(), array([AnyValue(int_value=5)] * len(NAMES))),
    "one int": (names(), array([double(1.0)] * (len(NAMES) - 1) + [AnyValue(int_value=5)])),
    "strings": (names(), array([text("1.0")] * len(NAMES))),
    "eleven bytes": (names(), array([AnyValue(bytes_value=b"1234567")] * len(NAMES))),
    "empty values": (array([AnyValue()] * 8), array([AnyValue()] * 8)),
    "nested": (array([names()]), array([times()])),
    "numbers as names": (array([double(1.0)] * len(NAMES)), times()),
    "not a number": (names(), times([float("nan"), *TIMES[1:]])),
    "infinite": (names(), times([float("inf"), *TIMES[1:]])),
    "negative": (names(), times([-1.0, *TIMES[1:]])),
    "beyond eleven days": (names(), times([1e15, *TIMES[1:]])),
    "a part twice": (names(("0/mlp",) * len(NAMES)), times()),
    "a bad sign": (names(("0/ml-p", *NAMES[1:])), times()),
    "capitals": (names(("Embedding", *NAMES[1:])), times()),
    "no kind": (names(("0/", *NAMES[1:])), times()),
    "no layer": (names(("/mlp", *NAMES[1:])), times()),
    "too many slashes": (names(("0/1/mlp", *NAMES[1:])), times()),
    "a layer beyond Int16": (names(("99999/mlp", *NAMES[1:])), times()),
    "a layer with a zero before": (names(("01/mlp", *NAMES[1:])), times()),
    "a name as long as its length byte": (names(("a" * 200, *NAMES[1:])), times()),
    "a name with a line end": (names(("a\n\x05\n\x03bcd", *NAMES[1:])), times()),
    "no UTF-8 length": (names(("é" * 70, *NAMES[1:])), times()),
    "more parts than a model has": (names([f"{n % 9999}/k{n}" for n in range(20_000)]), times([1.0] * 20_000)),
}  # fmt: skip


@pytest.mark.parametrize("name", POISON)
def test_a_malformed_step_is_left_out_and_harms_no_other(engine: Engine, name: str) -> None:
    """Its span is stored, as are the span and the rows of the step that came in the same insert."""
    bad = step_span(f"bad {name}", *POISON[name])
    bad.MergeFrom(step_span(f"good beside {name}", names(), times()))
    store(engine, bad)
    assert count(engine, "spans", f"bad {name}") == 1
    assert layers(engine, f"bad {name}") == []
    assert layers(engine, f"good beside {name}") == expected(NAMES, TIMES)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0",
        lambda raw: b"",
        lambda raw: raw[:3] + b"\x7f" + raw[4:],
        lambda raw: b"\xff" * len(raw),
    ],
)
@pytest.mark.parametrize("column", ["parts", "times"])
def test_bytes_that_are_no_array_are_left_out(engine: Engine, column: str, damage: Callable[[bytes], bytes]) -> None:
    """Whatever is stored as the array, the decoding view does not fail."""
    raw = {
        "parts": b"array:" + names().array_value.SerializeToString(),
        "times": b"array:" + times().array_value.SerializeToString(),
    }
    raw[column] = damage(raw[column])
    before = engine.rows("select count() from tailspan.layers")
    values = ", ".join(f"unhex('{raw[name].hex()}') as {name}" for name in ("parts", "times"))
    engine.command(f"insert into tailspan.layer_steps (parts, times) select {values}")
    assert engine.rows("select count() from tailspan.layers") == before


NAME = st.from_regex(r"(?:(?:0|[1-9][0-9]{0,3})/)?[a-z][a-z_0-9]{0,40}", fullmatch=True)


@settings(max_examples=25, deadline=None, phases=GENERATE)
@given(st.dictionaries(NAME, st.floats(0, 1e14), min_size=1, max_size=40))
def test_what_the_agent_writes_is_what_is_read(engine: Engine, parts: dict[str, float]) -> None:
    """Any names of the form and any times come back as they were sent."""
    service = uuid.uuid4().hex
    store(engine, step_span(service, names(list(parts)), times(list(parts.values()))))
    assert layers(engine, service) == expected(list(parts), list(parts.values()))


def test_doubles_are_read_bit_by_bit(engine: Engine) -> None:
    """A time keeps all bits of the double that was sent."""
    values = [struct.unpack("<d", struct.pack("<Q", 0x3FF0_0000_0000_0001 + n))[0] for n in range(len(NAMES))]
    store(engine, step_span("bits", names(), times(values)))
    found = engine.rows("select reinterpretAsUInt64(ns) from tailspan.layers where service = 'bits'")
    assert {int(row[0]) for row in found} == {0x3FF0_0000_0000_0001 + n for n in range(len(NAMES))}


def test_steps_tell_what_the_device_did(engine: Engine) -> None:
    """The view `steps` shows device times; what was not sent is -1, and a time of day 1970."""
    keys = {
        "DEVICE_BUSY_NS": AnyValue(int_value=0),
        "DEVICE_IDLE_NS": AnyValue(int_value=0),
        "DEVICE_LAUNCH_NS": AnyValue(int_value=5),
        "DEVICE_BEGIN_NS": AnyValue(int_value=BEGIN_NS + 17),
        "DEVICE_UNCERTAINTY_NS": AnyValue(int_value=900),
    }
    columns = (
        "device, device_busy_ns, device_idle_ns, launch_ns, toUnixTimestamp64Nano(device_begin), device_uncertainty_ns"
    )
    store(engine, step_span("timed", None, None, **keys))
    store(engine, step_span("untimed", None, None, DEVICE=AnyValue()))
    found = f"select {columns} from tailspan.steps where service = '{{}}'"
    assert engine.rows(found.format("timed")) == [["cuda", "0", "0", "5", str(BEGIN_NS + 17), "900"]]
    assert engine.rows(found.format("untimed")) == [["", "-1", "-1", "-1", "0", "-1"]]


def test_spans_can_still_be_rebuilt(engine: Engine) -> None:
    """The arrays stay on the step span as they came."""
    store(engine, step_span("kept", names(), times()))
    rows = engine.rows("select hex(attributes_other['tailspan.layers.ns']) from tailspan.spans where service = 'kept'")
    assert bytes.fromhex(rows[0][0]) == b"array:" + times().array_value.SerializeToString()


def test_every_kind_of_span_stays_decodable(engine: Engine) -> None:
    """A step span with a status, links and an odd length of ids gets its rows as any other."""
    request = step_span("odd", names(), times())
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.trace_id = b"short"
    span.kind = Span.SPAN_KIND_CONSUMER
    span.status.code = 2
    store(engine, request)
    assert layers(engine, "odd") == expected(NAMES, TIMES)
