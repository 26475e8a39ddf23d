"""The device probes of models: one for each engine that runs a model, kept on the model itself.

They go with the model, and a copy of it has none: a probe holds the model's modules. Off by TAILSPAN_DEVICE_TIMING=0,
layers by TAILSPAN_LAYER_BUDGET=0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tailspan.guard import logger
from tailspan.recorder import process

if TYPE_CHECKING:
    from tailspan.device.steps import StepProbe
    from tailspan.layers.sampler import LayerSampler

_PROBES = "tailspan_probes"
_models: WeakSet[Any] = WeakSet()


class _Probes:
    """The probes of one model by engine id; copied or pickled it is empty."""

    def __init__(self) -> None:
        self.by_engine: dict[str, StepProbe | None] = {}

    def __deepcopy__(self, _: Any) -> _Probes:
        return _Probes()

    def __reduce__(self) -> tuple[type[_Probes], tuple[()]]:
        return _Probes, ()


def probe_on(model: Any, engine_id: str) -> StepProbe | None:
    """Return the probe of one engine of a model, made at its first step; None where its device is not timed."""
    if not process.device_timing():
        return None
    probes: _Probes | None = getattr(model, _PROBES, None)
    if probes is None:
        probes = _Probes()
        setattr(model, _PROBES, probes)
        _models.add(model)
    if engine_id not in probes.by_engine:
        probes.by_engine[engine_id] = None  # whatever fails now is not tried again
        devices = {parameter.device for parameter in model.parameters()}
        if len(devices) == 1:
            probes.by_engine[engine_id] = new_probe(model, devices.pop())
        else:
            logger.info("tailspan: the model is on %d devices, so its device time is not measured", len(devices))
    return probes.by_engine[engine_id]


def forget_probes() -> None:
    """Take all probes off their models."""
    while _models:
        model = _models.pop()
        if hasattr(model, _PROBES):
            delattr(model, _PROBES)


def new_probe(
    model: Any, device: Any, *, sampler: Any = None, with_layers: bool = True, slows_step: bool = False
) -> StepProbe | None:
    """Return a probe for the steps of a model on a `torch.device`; None where that device is not timed.

    sampler: module that samples, if it is not part of the model. with_layers: whether layers may be sampled.
    slows_step: sampled steps run without compiled code, so that they take longer.
    """
    from tailspan.device import timer_for
    from tailspan.device.steps import StepProbe

    if not process.device_timing():
        return None
    timer = timer_for(device)
    if timer is None:
        return None
    return StepProbe(timer, _layers(model, sampler, slows_step) if with_layers else None)


def _layers(model: Any, sampler: Any, slows_step: bool) -> LayerSampler | None:
    from tailspan.layers.governor import Governor
    from tailspan.layers.plan import Plan, plan_of
    from tailspan.layers.sampler import LayerSampler

    budget = process.layer_budget()
    if not budget:
        return None
    plan = plan_of(model, sampler)
    if not isinstance(plan, Plan):
        logger.info("tailspan: layers are not timed: %s", plan)
        return None
    return LayerSampler(plan, Governor(budget, slows_step=slows_step))
