"""What the span of an engine step says, and the spans of the parts of the model below it.

Units: monotonic ns, put on the wall clock by `offset_ns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from tailspan import attributes as attr
from tailspan.agent.decode import Value
from tailspan.agent.device import CPU, DeviceTime, Layers
from tailspan.agent.ids import layer_id
from tailspan.agent.span import Span
from tailspan.agent.steps import FinishedStep

_INHERITED = (attr.ENGINE_ID, attr.ENGINE_NAME, attr.GEN_AI_MODEL, attr.WEIGHT)
"""What the spans of parts have from their step."""


def step_attributes(finished: FinishedStep, offset_ns: int) -> dict[str, Value]:
    """Return the attributes of a step span."""
    step, engine = finished.step, finished.engine
    attributes: dict[str, Value] = {
        attr.ROLE: attr.ROLE_STEP,
        attr.ENGINE_ID: step.engine,
        attr.ENGINE_NAME: engine.software,
        attr.GEN_AI_MODEL: engine.model,
        attr.STEP_NUMBER: step.number,
        attr.STEP_REQUESTS: step.requests,
        attr.STEP_PREFILL_TOKENS: step.prefill_tokens,
        attr.STEP_DECODE_TOKENS: step.decode_tokens,
        attr.STEP_WAITING: step.waiting,
        attr.STEP_PREEMPTED: step.preempted,
    }
    if step.kv_usage_ratio is not None:
        attributes[attr.STEP_KV_USAGE] = step.kv_usage_ratio
    if finished.work is not None:
        attributes[attr.STEP_EXECUTE_NS], attributes[attr.STEP_SAMPLE_NS] = finished.work
    if finished.idle_ns is not None:
        attributes[attr.STEP_IDLE_NS] = finished.idle_ns
    if finished.device is not None:
        _add_device(attributes, finished.device, finished.device_idle_ns, offset_ns)
    if finished.layers is not None:
        _add_layers(attributes, finished.layers)
    return attributes


def layer_spans(parent: Span, finished: FinishedStep, offset_ns: int) -> Iterator[Span]:
    """Yield a child of a step's span for each part of the model, one after the other in order of execution.

    The first begins where the device did, or with the step where that is not known. Empty without layer times.
    """
    layers, device = finished.layers, finished.device
    if layers is None:
        return
    begin_ns = parent.begin_ns
    if device is not None and device.begin_ns is not None:
        begin_ns = device.begin_ns + offset_ns
    common = {key: parent.attributes[key] for key in _INHERITED if key in parent.attributes}
    ends = pairwise(accumulate(layers.ns, initial=0.0))
    for number, (part, (begin, end)) in enumerate(zip(layers.parts, ends, strict=True)):
        layer, _, kind = part.rpartition("/")
        attributes: dict[str, Value] = {attr.ROLE: attr.ROLE_LAYER, **common, attr.LAYER_KIND: kind}
        if layer:
            attributes[attr.LAYER] = int(layer)
        yield Span(parent.resource, kind, parent.trace_id, layer_id(parent.span_id, number), begin_ns + round(begin),
                   begin_ns + round(end), attributes, parent.flags, parent.span_id)  # fmt: skip


def _add_device(attributes: dict[str, Value], device: DeviceTime, idle_ns: int | None, offset_ns: int) -> None:
    attributes[attr.DEVICE] = device.device
    attributes[attr.DEVICE_BUSY_NS] = device.busy_ns
    if device.device != CPU:
        attributes[attr.GPU_NS] = device.busy_ns
    if idle_ns is not None:
        attributes[attr.DEVICE_IDLE_NS] = idle_ns
    if device.launch_ns is not None:
        attributes[attr.DEVICE_LAUNCH_NS] = device.launch_ns
    if device.begin_ns is not None:
        attributes[attr.DEVICE_BEGIN_NS] = device.begin_ns + offset_ns
        attributes[attr.DEVICE_UNCERTAINTY_NS] = device.uncertainty_ns


def _add_layers(attributes: dict[str, Value], layers: Layers) -> None:
    attributes[attr.LAYERS_PARTS] = layers.parts
    attributes[attr.LAYERS_NS] = layers.ns
    attributes[attr.LAYERS_STEPS] = layers.steps
    attributes[attr.LAYERS_PHASE] = layers.phase
    attributes[attr.LAYERS_MODE] = layers.mode
    attributes[attr.LAYERS_COST_NS] = layers.cost_ns
