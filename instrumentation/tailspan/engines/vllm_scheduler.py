"""Hooks in vLLM's engine core process: its queue, its scheduler and its steps.

In: `EngineCore.preprocess_add_request` (a request has arrived over IPC), `Scheduler.add_request`, `schedule`,
`_preempt_request`, `update_from_output` and `finish_requests`; a step that raises.
Out: QUEUED in the thread that receives requests, everything else in the engine's own; see `vllm_batch`.

A request is recorded when it carries the mark that the API process set (`vllm_marks`); others count in the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailspan.engines import vllm_marks, vllm_runner
from tailspan.engines.vllm_batch import Batch
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import Engine, now_ns
from tailspan.recorder.process import is_started

SOFTWARE = "vllm"
_BATCH = "tailspan_batch"
_GUARD = Guard("vllm.scheduler")
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def _batch(scheduler: Any) -> Batch:
    batch: Batch | None = getattr(scheduler, _BATCH, None)
    if batch is None:
        config = scheduler.vllm_config.model_config
        names = config.served_model_name
        name = names[0] if isinstance(names, list) else names
        batch = Batch(Engine(SOFTWARE, str(name or config.model)))
        setattr(scheduler, _BATCH, batch)
    return batch


def _received(wrapped: Function, core: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = wrapped(*args, **kwargs)
    if is_started():
        with _GUARD:
            request = result[0] if isinstance(result, tuple) else result
            _queue(core.scheduler, request)
    return result


def _queue(scheduler: Any, request: Any) -> None:
    observability = getattr(scheduler.vllm_config, "observability_config", None)
    traces_itself = bool(getattr(observability, "otlp_traces_endpoint", None))
    key = vllm_marks.take(request, keep_headers=traces_itself)
    request.tailspan_key = key
    if key is not None:
        request.tailspan_queued_ns = at_ns = now_ns()
        _batch(scheduler).engine.queued(key, at_ns, request.num_prompt_tokens)


def _add(wrapped: Function, scheduler: Any, args: Arguments, kwargs: Keywords) -> Any:
    if is_started():
        with _GUARD:
            request = args[0] if args else kwargs["request"]
            if request.request_id not in scheduler.requests:
                if not hasattr(request, "tailspan_key"):
                    _queue(scheduler, request)
                _batch(scheduler).added(request, request.tailspan_key)
    return wrapped(*args, **kwargs)


def _schedule(wrapped: Function, scheduler: Any, args: Arguments, kwargs: Keywords) -> Any:
    begin_ns = now_ns()
    output = wrapped(*args, **kwargs)
    if is_started():
        with _GUARD:
            batch = _batch(scheduler)
            number = batch.planned(scheduler, output, begin_ns)
            if number:
                setattr(output, vllm_runner.STEP, (batch.engine.name, number))
    return output


def _preempt(wrapped: Function, scheduler: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = wrapped(*args, **kwargs)
    batch = getattr(scheduler, _BATCH, None)
    if batch is not None and is_started():
        with _GUARD:
            batch.evicted(args[0] if args else kwargs["request"], now_ns())
    return result


def _update(wrapped: Function, scheduler: Any, args: Arguments, kwargs: Keywords) -> Any:
    at_ns = now_ns()
    batch = getattr(scheduler, _BATCH, None)
    if batch is None or not is_started():
        return wrapped(*args, **kwargs)
    with _GUARD:
        batch.computed(*_step(*args, **kwargs), at_ns)
    outputs = wrapped(*args, **kwargs)
    with _GUARD:
        batch.updated(outputs, at_ns)
    return outputs


def _step(scheduler_output: Any, model_runner_output: Any) -> tuple[Any, Any]:
    return scheduler_output, model_runner_output


def _give_up(wrapped: Function, scheduler: Any, args: Arguments, kwargs: Keywords) -> Any:
    batch = getattr(scheduler, _BATCH, None)
    if batch is None or not is_started():
        return wrapped(*args, **kwargs)
    ids: tuple[str, ...] = ()
    with _GUARD:
        asked = args[0] if args else kwargs["request_ids"]
        ids = (asked,) if isinstance(asked, str) else tuple(scheduler.requests if asked is None else asked)
        args, kwargs = (ids, *args[1:]) if args else args, kwargs if args else {**kwargs, "request_ids": ids}
    result = wrapped(*args, **kwargs)
    with _GUARD:
        at_ns = now_ns()
        for request_id in ids:
            batch.finished(request_id, at_ns, aborted=True)
    return result


def _run_step(wrapped: Function, core: Any, args: Arguments, kwargs: Keywords) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except BaseException:
        with _GUARD:
            batch = getattr(core.scheduler, _BATCH, None)
            if batch is not None and is_started():
                batch.failed(now_ns())
        raise


_CORE, _SCHEDULER = "vllm.v1.engine.core", "vllm.v1.core.sched.scheduler"
TARGETS = (
    Target(_CORE, "EngineCore.preprocess_add_request", _received, "the moment at which the queue begins"),
    Target(_CORE, "EngineCore.step", _run_step, "the last step before a crash"),
    Target(_CORE, "EngineCore.step_with_batch_queue", _run_step, "the last step before a crash"),
    Target(_SCHEDULER, "Scheduler.add_request", _add, "queue, prefill and decode"),
    Target(_SCHEDULER, "Scheduler.schedule", _schedule, "steps; queue, prefill and decode"),
    Target(_SCHEDULER, "Scheduler.update_from_output", _update, "token times and the end of requests"),
    Target(_SCHEDULER, "Scheduler.finish_requests", _give_up, "the end of aborted requests"),
    Target(_SCHEDULER, "Scheduler._preempt_request", _preempt, "preemptions"),
)
