"""What spans and metrics say of device time and layers, up to the bytes that are sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource

from tailspan import attributes as attr
from tailspan.agent.decode import Step
from tailspan.agent.device import DeviceTime, Layers
from tailspan.agent.encode import message, pack
from tailspan.agent.ledger import ledger
from tailspan.agent.settings import AgentSettings, Head, Keep
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.steps import FinishedStep
from tailspan.agent.timeline import Timeline
from tailspan.layers.parts import OUTSIDE, Part, encode_parts
from tailspan.recorder import Engine, process
from tailspan.recorder.engine import step_device, step_layers
from tests.instrumentation.test_agent import one_request, start_agent
from tests.support.finished import MS, Box, finished, finished_step, pipeline
from tests.support.otlp_endpoints import GrpcEndpoint, points
from tests.support.otlp_sink import OtlpSink, attributes_of

OFFSET_NS = 1_700_000_000_000_000_000
RESOURCE = Resource({"service.name": "svc"})
LAYERS = Layers(
    "engine-1", 3, ("embedding", "0/norm", "0/attention", "12/mlp", "lm_head"), (1e6, 0.5, 0.25, 3e6, 2.25),
    40, 9_000, "eager", "prefill",
)  # fmt: skip
DEVICE_KEYS = {value for name, value in vars(attr).items() if name.startswith("DEVICE_")} | {attr.DEVICE, attr.GPU_NS}


def device(number: int, kind: str = "cuda", **known: int | None) -> DeviceTime:
    """Return a device time of 15 ms that begins 2 ms after the step of `finished_step`."""
    fields: dict[str, Any] = {"busy_ns": 15 * MS, "idle_ns": MS, "begin_ns": (number * 30 + 2) * MS}
    return DeviceTime("engine-1", number, kind, **fields | {"uncertainty_ns": 700, "launch_ns": 4 * MS} | known)


def timed_step(number: int = 3, **fields: Any) -> FinishedStep:
    """Return a step of 20 ms with 15 ms of a GPU and the times of its layers."""
    return finished_step(number)._replace(**{"device": device(number), "layers": LAYERS} | fields)


def of_step(step: FinishedStep) -> Mapping[str, Any]:
    """Return what the span of a step says of the device and of layers."""
    attributes = SpanBuilder(RESOURCE, OFFSET_NS).step(step).attributes
    return {key: value for key, value in attributes.items() if key in DEVICE_KEYS or key.startswith("tailspan.layer")}


def test_the_span_of_a_step_says_all_that_its_device_told() -> None:
    """The begin is wall time, by the offset of the span itself."""
    assert of_step(timed_step(layers=None)) == {
        attr.DEVICE: "cuda",
        attr.DEVICE_BUSY_NS: 15 * MS,
        attr.GPU_NS: 15 * MS,
        attr.DEVICE_IDLE_NS: MS,
        attr.DEVICE_LAUNCH_NS: 4 * MS,
        attr.DEVICE_BEGIN_NS: OFFSET_NS + 92 * MS,
        attr.DEVICE_UNCERTAINTY_NS: 700,
    }


def test_what_is_not_known_is_absent() -> None:
    """The begin takes its uncertainty along; a step without device says nothing."""
    unknown = device(3, idle_ns=None, begin_ns=None, launch_ns=None)
    assert of_step(timed_step(layers=None, device=unknown)).keys() == {attr.DEVICE, attr.DEVICE_BUSY_NS, attr.GPU_NS}
    assert of_step(finished_step(3)) == {}


def test_idle_time_without_requests_is_not_told() -> None:
    """The device's gap counts only where the host knows that there was work."""
    assert attr.DEVICE_IDLE_NS not in of_step(timed_step(idle_ns=None))
    assert of_step(timed_step(idle_ns=0))[attr.DEVICE_IDLE_NS] == MS


def test_a_cpu_has_no_gpu_time() -> None:
    """Its busy time is that of a device all the same."""
    said = of_step(timed_step(layers=None, device=device(3, "cpu", launch_ns=None)))
    assert (said[attr.DEVICE], said[attr.DEVICE_BUSY_NS], attr.GPU_NS in said) == ("cpu", 15 * MS, False)


def test_layer_times_are_arrays_on_the_wire() -> None:
    """Decoded by protobuf: texts and doubles in order, and what they stand for."""
    span = SpanBuilder(RESOURCE, OFFSET_NS).step(timed_step())
    request = ExportTraceServiceRequest.FromString(message(RESOURCE, [pack(span)]))
    (sent,) = request.resource_spans[0].scope_spans[0].spans
    values = {item.key: item.value for item in sent.attributes}
    parts, times = (values[key].array_value.values for key in (attr.LAYERS_PARTS, attr.LAYERS_NS))
    assert {value.WhichOneof("value") for value in parts} == {"string_value"}
    assert {value.WhichOneof("value") for value in times} == {"double_value"}
    assert tuple(value.string_value for value in parts) == LAYERS.parts
    assert tuple(value.double_value for value in times) == LAYERS.ns
    rest = {key: value for key, value in attributes_of(sent.attributes).items() if key.startswith("tailspan.layers.")}
    assert {key: rest[key] for key in rest.keys() - {attr.LAYERS_PARTS, attr.LAYERS_NS}} == {
        attr.LAYERS_STEPS: 40,
        attr.LAYERS_PHASE: "prefill",
        attr.LAYERS_MODE: "eager",
        attr.LAYERS_COST_NS: 9_000,
    }


@pytest.mark.parametrize("begin_ns", [92 * MS, None], ids=["from the device's begin", "from the step's begin"])
def test_layers_are_children_one_after_the_other(begin_ns: int | None) -> None:
    """They cover the sum of the times without gaps; names are kinds; ids differ; they have the weight of the step."""
    builder, step = SpanBuilder(RESOURCE, OFFSET_NS), timed_step(device=device(3, begin_ns=begin_ns))
    parent = builder.step(step, 5.0)
    children = builder.layers(parent, step)
    assert [child.name for child in children] == ["embedding", "norm", "attention", "mlp", "lm_head"]
    assert [child.attributes[attr.LAYER_KIND] for child in children] == [child.name for child in children]
    assert [child.attributes.get(attr.LAYER) for child in children] == [None, 0, 0, 12, None]
    assert {child.attributes[attr.ROLE] for child in children} == {attr.ROLE_LAYER}
    assert {child.attributes[attr.WEIGHT] for child in children} == {5.0}
    assert {(child.trace_id, child.parent_id) for child in children} == {(parent.trace_id, parent.span_id)}
    assert len({parent.span_id, *[child.span_id for child in children]}) == 6
    assert children[0].begin_ns == (parent.begin_ns if begin_ns is None else OFFSET_NS + begin_ns)
    assert [child.begin_ns for child in children[1:]] == [child.end_ns for child in children[:-1]]
    assert children[-1].end_ns - children[0].begin_ns == round(sum(LAYERS.ns))


def test_span_ids_of_layers_fit_and_differ() -> None:
    """Of a thousand parts of each of many steps no id is zero, that of the step, or another part's."""
    builder = SpanBuilder(RESOURCE, 0)
    names = tuple(f"{layer}/mlp" for layer in range(1000))
    layers = LAYERS._replace(parts=names, ns=(1.0,) * 1000)
    for number in (1, 2, 1 << 31, (1 << 32) - 1, 1 << 32):
        step = timed_step(number, layers=layers)
        parent = builder.step(step)
        ids = {parent.span_id, *[child.span_id for child in builder.layers(parent, step)]}
        assert len(ids) == 1001
        assert 0 < min(ids) <= max(ids) < 1 << 64


def emitted(steps: list[FinishedStep], **settings: Any) -> list[Mapping[str, Any]]:
    """Return the attributes of the spans that a pipeline lets pass."""
    box = Box()
    pipeline(AgentSettings(**settings), box).emit([], steps)
    return [span.attributes or {} for span in box.spans]


def test_layer_spans_are_asked_for() -> None:
    """Off by default; a step without layer times has none."""
    assert [said[attr.ROLE] for said in emitted([timed_step()])] == ["step"]
    roles = [said[attr.ROLE] for said in emitted([finished_step(1), timed_step()], layer_spans=True)]
    assert roles == ["step", "step", *["layer"] * 5]


def test_steps_with_layer_times_outlive_sampling_at_a_weight_of_one() -> None:
    """All of them are kept with their children, of the others a share with its weight: both counts are right."""
    steps = [timed_step(n) if n % 50 == 0 else finished_step(n) for n in range(1, 20_001)]
    kept = emitted(steps, keep=Keep(ratio=0.1), layer_spans=True)
    with_layers = [said for said in kept if attr.LAYERS_NS in said]
    without = [said for said in kept if said[attr.ROLE] == "step" and attr.LAYERS_NS not in said]
    assert len(with_layers) == 400
    assert not any(attr.WEIGHT in said for said in with_layers)
    assert {said[attr.WEIGHT] for said in without} == {10.0}
    assert sum(said[attr.WEIGHT] for said in without) == pytest.approx(19_600, rel=0.07)
    assert sum(said[attr.ROLE] == attr.ROLE_LAYER for said in kept) == 5 * 400


@pytest.mark.parametrize("settings", [{"keep": Keep(errors=True)}, {"head": Head(ratio=0.0)}], ids=["rules", "head"])
def test_where_no_steps_are_wanted_none_is_kept(settings: dict[str, Any]) -> None:
    """Neither a step with layer times nor its children."""
    assert emitted([timed_step(), finished_step(4)], layer_spans=True, **settings) == []


def of_request(times: list[DeviceTime]) -> list[tuple[str, int | None]]:
    """Return GPU time of the request of `finished()` and its stages.

    Its steps are from 20 to 40, 40 to 50 and 50 to 60 ms after its begin at 1 s; prefill is the first of them.
    """
    item = finished()
    assert item.engine is not None
    item.engine.device.update({time.number: time for time in times})
    account = ledger(item)
    assert account is not None
    said = [span.attributes for span in SpanBuilder(RESOURCE, 0).request(account)]
    return [(str(one.get(attr.STAGE, "request")), one.get(attr.GPU_NS)) for one in said]  # type: ignore[misc]


def at(number: int, begin_ms: float | None, busy_ms: float, kind: str = "cuda") -> DeviceTime:
    """Return a device time in ms after the request's begin."""
    begin_ns = None if begin_ms is None else round((1000 + begin_ms) * MS)
    return DeviceTime("engine-1", number, kind, round(busy_ms * MS), None, begin_ns, 0, None)


COMPUTED = ("request", "prefill", "decode")


def test_a_stage_has_the_gpu_time_of_its_steps() -> None:
    """Only what lies within the stage: 2 ms of the second step are before the first token was on the host."""
    said = of_request([at(0, 21, 15), at(1, 38, 10), at(2, 51, 8)])
    assert dict(said) == {
        name: {"request": 33 * MS, "prefill": 17 * MS, "decode": 16 * MS}.get(name) for name, _ in said
    }


def test_where_the_begin_is_unknown_the_device_ended_with_the_step() -> None:
    """So 2 of 12 ms of a step of 10 ms are before the first token."""
    said = dict(of_request([at(0, None, 15), at(1, None, 12), at(2, None, 8)]))
    assert [said[name] for name in COMPUTED] == [35 * MS, 17 * MS, 18 * MS]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], (None, None, None)),
        ([at(0, 21, 15), at(1, 40, 9)], (None, 15 * MS, None)),
        ([at(1, 40, 9), at(2, 50, 9)], (None, None, 18 * MS)),
        ([at(0, 21, 15, "cpu"), at(1, 40, 9, "cpu"), at(2, 50, 9, "cpu")], (None, None, None)),
        ([at(0, 21, 15), at(1, 40, 9, "cpu"), at(2, 50, 9)], (None, 15 * MS, None)),
        ([at(7, 21, 15)], (None, None, None)),
    ],
    ids=["no device", "last step missing", "first step missing", "cpu", "one of another device", "other steps"],
)
def test_a_stage_with_a_step_that_was_not_timed_has_no_gpu_time(
    times: list[DeviceTime], expected: tuple[int | None, ...]
) -> None:
    """And the request has none unless all its stages have."""
    said = dict(of_request(times))
    assert tuple(said[name] for name in COMPUTED) == expected


def test_a_stage_without_a_step_has_no_gpu_time_to_add() -> None:
    """After an only token there may be microseconds of decode in which no step ran; the request still has its sum."""
    item = finished(tokens=1)
    item.request.finish_ns = (item.request.finish_ns or 0) + 5_000
    assert item.engine is not None
    item.engine.device[0] = at(0, 21, 15)
    account = ledger(item)
    assert account is not None
    assert [account.gpu_ns(part) for part in account.stages if part.stage in COMPUTED] == [15 * MS, 0]
    assert account.request_gpu_ns == 15 * MS


numbers = st.integers(0, 200)


@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers, st.booleans()), max_size=12),
    numbers,
    numbers,
)
def test_gpu_time_within_an_interval_is_what_counting_gives(
    drawn: list[tuple[int, int, int, int, bool]], begin: int, length: int
) -> None:
    """For steps in any order and any overlap, compared with one nanosecond after the other."""
    steps: dict[int, Step] = {}
    times: dict[int, DeviceTime] = {}
    for number, (step_begin, wall, device_begin, busy, is_timed) in enumerate(drawn):
        steps[number] = Step("e", number, step_begin, step_begin + wall, 0, 1, 1, 0, 0, None)
        if is_timed:
            times[number] = DeviceTime("e", number, "rocm", busy, None, device_begin or None, 0, None)
    found, end = Timeline(steps, times).gpu_ns(begin, begin + length), begin + length
    between = Timeline(steps).between(begin, end)
    ran = [] if between is None else [n for n in steps if between[0] <= n <= between[1]]
    if not times or any(number not in times for number in ran):
        assert found is None
        return
    counted = 0
    for number, time in times.items():
        first = time.begin_ns if time.begin_ns is not None else steps[number].end_ns - time.busy_ns
        counted += max(0, min(first + time.busy_ns, end) - max(first, begin))
    assert found == min(counted, length)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrpcEndpoint]:
    """A running OTLP/gRPC endpoint that is the agent's destination of metrics."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with GrpcEndpoint() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", running.endpoint)
        yield running


def test_device_times_are_measured(endpoint: GrpcEndpoint) -> None:
    """Busy time of every step that has it, idle time where there were requests; the label says which device."""
    line = pipeline()
    line.emit(
        [], [timed_step(1), timed_step(2, idle_ns=None), finished_step(3), timed_step(4, device=device(4, "cpu"))]
    )
    line.close()
    latest = endpoint.received.latest
    found = {
        (name, attributes[attr.DEVICE]): (point.count, round(point.sum, 6))
        for name in ("busy", "idle")
        for attributes, point in points(latest[f"tailspan.step.device.{name}"])
    }
    assert found == {
        ("busy", "cuda"): (2, 0.03),
        ("busy", "cpu"): (1, 0.015),
        ("idle", "cuda"): (1, 0.001),
        ("idle", "cpu"): (1, 0.001),
    }
    assert latest["tailspan.step.device.busy"].unit == "s"


def test_from_the_ring_to_the_endpoint(worker_dir: Path, sink: OtlpSink) -> None:
    """A real agent: the request has GPU time in its stages, the sampled step a child for each part of the model."""
    agent = start_agent(worker_dir, sink.endpoint, TAILSPAN_LAYER_SPANS="1")
    engine = Engine("vllm", "smol")
    t = process.now_ns() - 100 * MS
    parts = [Part(OUTSIDE, "embedding"), Part(0, "attention"), Part(0, "mlp"), Part(1, "attention"), Part(1, "mlp")]
    one_request(engine, at_ns=t)
    step_layers(engine.name, 2, encode_parts(parts), [MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS], 7, 50)
    for number, begin in ((1, 21), (2, 52), (3, 72)):
        step_device(engine.name, number, attr.DEVICES.index("cuda"), 15 * MS, MS, t + begin * MS, 100, MS)
    process.close()
    assert agent.wait(20) == 0
    spans = sink.spans
    gpu = {span.name: attributes_of(span.attributes).get(attr.GPU_NS) for span in spans if span.name != "step"}
    assert {name: value for name, value in gpu.items() if value is not None} == {
        "POST /v1/chat/completions": 45 * MS,
        "prefill": 15 * MS,
        "decode": 30 * MS,
    }
    (sampled,) = [span for span in spans if attr.LAYERS_NS in attributes_of(span.attributes)]
    said = attributes_of(sampled.attributes)
    assert (said[attr.STEP_NUMBER], said[attr.DEVICE_BUSY_NS], said[attr.LAYERS_STEPS]) == (2, 15 * MS, 7)
    children = [span for span in spans if span.parent_span_id == sampled.span_id]
    assert [child.name for child in children] == ["embedding", "attention", "mlp", "attention", "mlp"]
    assert children[0].start_time_unix_nano == said[attr.DEVICE_BEGIN_NS]
    assert children[-1].end_time_unix_nano == said[attr.DEVICE_BEGIN_NS] + said[attr.DEVICE_BUSY_NS]
