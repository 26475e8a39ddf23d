"""Hooks in vLLM's worker process: what of a step the model runner took, by its host's clock and by the device's.

In: both model runners, `execute_model` (inputs and forward pass; on a GPU their launch) and `sample_tokens`; of the
first runner also `_model_forward` and `_sample`, between which the device computes.
Out: the records of rank 0 alone. The step is known by what the scheduler's hook left on its `SchedulerOutput`, which
travels with it; warm-up passes have nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailspan.engines import vllm_device
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import now_ns
from tailspan.recorder.engine import step_work
from tailspan.recorder.process import is_started

STEP = "tailspan_step"
"""Attribute of a `SchedulerOutput`: name of the engine and number of the step."""
_PENDING = "tailspan_pending"
_GUARD = Guard("vllm.runner")
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def _execute(wrapped: Function, runner: Any, args: Arguments, kwargs: Keywords) -> Any:
    step: tuple[str, int] | None = None
    if is_started():
        with _GUARD:
            output = args[0] if args else kwargs["scheduler_output"]
            step = getattr(output, STEP, None)
            if step is not None and runner.parallel_config.rank == 0:
                vllm_device.planned(runner, step, output)
            else:
                step = None
    begin_ns = now_ns()
    try:
        result = wrapped(*args, **kwargs)
    except BaseException:
        if step is not None:
            with _GUARD:
                vllm_device.failed(runner)
        raise
    if step is not None:
        with _GUARD:
            took_ns = now_ns() - begin_ns
            if result is None:  # sampling follows
                setattr(runner, _PENDING, (step, took_ns))
            else:
                vllm_device.ended(runner)
                step_work(step[0], step[1], took_ns, 0)
    return result


def _forward(wrapped: Function, runner: Any, args: Arguments, kwargs: Keywords) -> Any:
    with _GUARD:
        vllm_device.forward_begins(runner)
    result = wrapped(*args, **kwargs)
    with _GUARD:
        vllm_device.forward_returned(runner)
    return result


def _sampled(wrapped: Function, runner: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = wrapped(*args, **kwargs)
    with _GUARD:
        vllm_device.sampled(runner)
    return result


def _sample(wrapped: Function, runner: Any, args: Arguments, kwargs: Keywords) -> Any:
    begin_ns = now_ns()
    result = wrapped(*args, **kwargs)
    with _GUARD:
        pending: tuple[tuple[str, int], int] | None = getattr(runner, _PENDING, None)
        if pending is not None:
            setattr(runner, _PENDING, None)
            if is_started():
                (engine, number), executed_ns = pending
                vllm_device.ended(runner)
                step_work(engine, number, executed_ns, now_ns() - begin_ns)
    return result


_FIRST, _SECOND = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
_GIVES = "time of the model runner in each step"
_DEVICE = "device time of each step, layers"
TARGETS = (
    *(
        Target(module, f"GPUModelRunner.{name}", wrapper, _GIVES)
        for module in (_FIRST, _SECOND)
        for name, wrapper in (("execute_model", _execute), ("sample_tokens", _sample))
    ),
    Target(_FIRST, "GPUModelRunner._model_forward", _forward, _DEVICE),
    Target(_FIRST, "GPUModelRunner._sample", _sampled, _DEVICE),
    Target(_SECOND, "GPUModelRunner.sample", _sampled, _DEVICE),
)
