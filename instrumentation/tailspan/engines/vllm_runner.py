"""Hooks in vLLM's worker process: what of a step the model runner took, by its host's clock.

In: both model runners, `execute_model` (inputs and forward pass; on a GPU their launch) and `sample_tokens`.
Out: one record a step, of rank 0 alone. The step is known by what the scheduler's hook left on its `SchedulerOutput`,
which travels with it; warm-up passes have nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    begin_ns = now_ns()
    result = wrapped(*args, **kwargs)
    if is_started():
        with _GUARD:
            step = getattr(args[0] if args else kwargs["scheduler_output"], STEP, None)
            if step is not None and runner.parallel_config.rank == 0:
                took_ns = now_ns() - begin_ns
                if result is None:  # sampling follows
                    setattr(runner, _PENDING, (step, took_ns))
                else:
                    _record(step, took_ns, 0)
    return result


def _sample(wrapped: Function, runner: Any, args: Arguments, kwargs: Keywords) -> Any:
    begin_ns = now_ns()
    result = wrapped(*args, **kwargs)
    with _GUARD:
        step, executed_ns = getattr(runner, _PENDING, None) or (None, 0)
        if step is not None:
            setattr(runner, _PENDING, None)
            if is_started():
                _record(step, executed_ns, now_ns() - begin_ns)
    return result


def _record(step: tuple[str, int], execute_ns: int, sample_ns: int) -> None:
    engine, number = step
    step_work(engine, number, execute_ns, sample_ns)


_GIVES = "time of the model runner in each step"
TARGETS = tuple(
    Target(module, f"GPUModelRunner.{name}", wrapper, _GIVES)
    for module in ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
    for name, wrapper in (("execute_model", _execute), ("sample_tokens", _sample))
)
