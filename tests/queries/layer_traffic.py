"""Made-up engines whose steps carry device times and, where sampled, the times of the parts of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tests.queries import engine_traffic, traffic
from tests.queries.engine_traffic import Engine, Step

NOMINAL = {
    "embedding": 0.2,
    **{f"{layer}/{kind}": share for layer in range(6) for kind, share in (
        ("norm", 0.1), ("attention", 1.0), ("mlp", 1.6), ("other", 0.05)
    )},
    "norm": 0.1,
    "lm_head": 1.2,
    "sampler": 0.4,
    "other": 0.1,
}  # fmt: skip
"""Parts of a model of six layers and how long each takes, in no unit."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a device is like: its kind, and busy and launch time as shares of the step."""

    kind: str = "cuda"
    mode: str = "graph"
    busy_share: float = 0.6
    launch_share: tuple[float, float] | None = (0.1, 0.3)
    """Launch time as a share of busy time, least and largest; None = not known."""
    sample_every: int = 5
    untimed_ratio: float = 0.0
    slower: Mapping[str, float] = field(default_factory=dict)
    """Parts that take so many times as long as nominal."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The device's view of one stored step; -1 where it is not known."""

    step: Step
    busy_ns: int
    idle_ns: int
    launch_ns: int
    parts: Mapping[str, float]
    """Empty unless the step is sampled."""
    stands_for: int

    @property
    def phase(self) -> str:
        """`prefill` if the step computed prompt tokens."""
        return "prefill" if self.step.prefill_tokens else "decode"

    @property
    def counts(self) -> float:
        """How many steps a sampled step stands for."""
        return self.stands_for * self.step.weight


@dataclass(eq=False, slots=True)
class LayeredEngine:
    """An engine and what its device did."""

    engine: Engine
    device: Device
    steps: list[DeviceStep]

    @property
    def sampled(self) -> list[DeviceStep]:
        """The steps with times of the parts."""
        return [item for item in self.steps if item.parts]


def layered(engine: Engine, device: Device, begin_ns: int, requests: int) -> LayeredEngine:
    """Run an engine, then give its steps device times."""
    engine_traffic.simulate(engine, begin_ns, requests)
    rng = np.random.default_rng(engine.seed + 500)
    total = sum(NOMINAL.values())
    found, since = [], {"prefill": 0, "decode": 0}
    for index, step in enumerate(engine.stored):
        unit = step.wall_ns * device.busy_share / total
        shift = 1.4 if step.prefill_tokens else 1.0
        parts = {
            name: float(np.float32(
                nominal * unit * device.slower.get(name, 1.0) * (shift if name.endswith("attention") else 1.0)
                * rng.lognormal(0, 0.04)
            ))
            for name, nominal in NOMINAL.items()
        }  # fmt: skip
        phase = "prefill" if step.prefill_tokens else "decode"
        since[phase] += 1
        sampled = bool(device.sample_every) and index % device.sample_every == 0
        stands_for = since[phase] if sampled else 0
        since[phase] = 0 if sampled else since[phase]
        if rng.random() < device.untimed_ratio:
            found.append(DeviceStep(step, -1, -1, -1, {}, 0))
            continue
        busy_ns = round(sum(parts.values()))
        idle_ns = round(step.idle_ns + step.wall_ns * 0.1) if rng.random() > 0.05 else -1
        launch_ns = round(busy_ns * rng.uniform(*device.launch_share)) if device.launch_share else -1
        found.append(DeviceStep(step, busy_ns, idle_ns, launch_ns, parts if sampled else {}, stands_for))
    return LayeredEngine(engine, device, found)


def spans_of(item: LayeredEngine) -> Iterator[tuple[str, str, Span]]:
    """Yield the spans of the steps that are sent."""
    for (service, instance, span), timed in zip(engine_traffic.step_spans(item.engine), item.steps, strict=True):
        span.attributes.extend(traffic.key_values(device_keys(item.device, timed)))
        if timed.parts:
            names = [AnyValue(string_value=name) for name in timed.parts]
            times = [AnyValue(double_value=ns) for ns in timed.parts.values()]
            for key, values in ((attributes.LAYERS_PARTS, names), (attributes.LAYERS_NS, times)):
                span.attributes.append(KeyValue(key=key, value=AnyValue(array_value=ArrayValue(values=values))))
        yield service, instance, span


def device_keys(device: Device, timed: DeviceStep) -> dict[str, str | int | float | bool]:
    """Return what the agent says of a step's device, and of its sampling."""
    if timed.busy_ns < 0:
        return {}
    keys: dict[str, str | int | float | bool] = {
        attributes.DEVICE: device.kind,
        attributes.DEVICE_BUSY_NS: timed.busy_ns,
        attributes.DEVICE_BEGIN_NS: timed.step.begin_ns + 1000,
        attributes.DEVICE_UNCERTAINTY_NS: 2000 + timed.step.number % 7,
    }
    if device.kind != "cpu":
        keys[attributes.GPU_NS] = timed.busy_ns
    if timed.idle_ns >= 0:
        keys[attributes.DEVICE_IDLE_NS] = timed.idle_ns
    if timed.launch_ns >= 0:
        keys[attributes.DEVICE_LAUNCH_NS] = timed.launch_ns
    if timed.parts:
        keys[attributes.LAYERS_STEPS] = timed.stands_for
        keys[attributes.LAYERS_PHASE] = timed.phase
        keys[attributes.LAYERS_MODE] = device.mode
        keys[attributes.LAYERS_COST_NS] = 150_000
    return keys


def fleet(begin_ns: int) -> list[LayeredEngine]:
    """Return engines of four kinds: graph, launch-bound, host clock with sampled spans, and times without layers."""
    return [
        layered(Engine("gpu-a", "llama-6", 10.0, 11), Device(), begin_ns, 200),
        layered(
            Engine("gpu-b", "llama-eager", 8.0, 12),
            Device(mode="eager", busy_share=0.8, launch_share=(0.6, 1.0), untimed_ratio=0.1),
            begin_ns,
            120,
        ),
        layered(
            Engine("cpu-c", "smol-6", 12.0, 13, dropped_ratio=0.5),
            Device("cpu", "eager", 0.9, None, 7, slower={"2/attention": 1.5}),
            begin_ns,
            100,
        ),
        layered(Engine("gpu-d", "qwen-6", 9.0, 14), Device("rocm", sample_every=0), begin_ns, 40),
    ]


def steady(begin_ns: int) -> LayeredEngine:
    """Return a long run of an engine that does not change, every step sampled."""
    return layered(Engine("gpu-f", "steady-6", 10.0, 16), Device(sample_every=1), begin_ns, 400)


def slowed(begin_ns: int) -> list[LayeredEngine]:
    """Return a later run of the first engine's model in which one part of one layer takes longer, under more load."""
    device = Device(slower={"3/mlp": 1.12})
    return [layered(Engine("gpu-e", "llama-6", 10.0, 15), device, begin_ns, 260)]
