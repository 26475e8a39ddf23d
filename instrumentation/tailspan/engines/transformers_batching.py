"""Hooks of continuous batching: `ContinuousBatchingManager` and its background thread.

In: a request's way through `add_request`, every planned batch and every update, deliveries, cancellations and failures.
Out: one request for each prompt (the running one, else a root `generate`), one step for each batch.
With asynchronous batching the next batch is planned before the previous one is updated: updates take the oldest plan.
Warm-up batches do not pass these functions.
Limit: with `num_return_sequences` above 1 the forked children count in the steps but have no request of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from tailspan.engines import transformers_batching_device as device
from tailspan.engines.offline import offline_request
from tailspan.engines.transformers_batch import Batch, Member
from tailspan.engines.transformers_models import model_name
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import current_request, now_ns
from tailspan.recorder.process import is_started

_GUARD = Guard("transformers.batching")
_batches: WeakKeyDictionary[Any, Batch] = WeakKeyDictionary()
"""By `OutputRouter`: the one object that manager and processor of a batch share."""
_schedulers: WeakKeyDictionary[Any, Batch] = WeakKeyDictionary()
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


class _Adding(threading.local):
    pending: tuple[Batch, Member] | None = None


_adding = _Adding()


def _add_request(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    # Another rank than the driver of a tensor parallel group only pretends to take requests.
    if not is_started() or not getattr(instance, "is_tp_driver", True):
        return wrapped(*args, **kwargs)
    with _GUARD:
        _adding.pending = _begin(instance, args[0] if args else kwargs["input_ids"])
    pending = _adding.pending
    request_id = None
    try:
        request_id = wrapped(*args, **kwargs)
    finally:
        _adding.pending = None
        if request_id is None and pending is not None:
            with _GUARD:
                batch, member = pending
                batch.refused(member)
    return request_id


def _begin(manager: Any, input_ids: Any) -> tuple[Batch, Member]:
    begin_ns = now_ns()
    batch = _batches.get(manager.output_router)
    if batch is None:
        batch = _batches[manager.output_router] = Batch(model_name(manager.model))
    request = current_request.get()
    owned = request is None or batch.holds(request)
    if request is None or owned:
        request = offline_request(begin_ns, batch.engine.model, request.traceparent if request is not None else None)
    return batch, Member(request, owned, begin_ns, len(input_ids))


def _state_made(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> None:
    wrapped(*args, **kwargs)
    # Before the background thread can see it: it is put into the queue after this.
    if _adding.pending is not None:
        with _GUARD:
            batch, member = _adding.pending
            batch.added(instance.request_id, member)


def _prepare(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    begin_ns = now_ns()
    is_planned = wrapped(*args, **kwargs)
    with _GUARD:
        batch = _batches.get(instance.output_router)
        if batch is not None:
            if batch.scheduler_id != id(instance.scheduler):
                batch.scheduler_id = id(instance.scheduler)
                _schedulers[instance.scheduler] = batch
            if is_planned:
                batch.planned(instance, begin_ns)
    return is_planned


def _compute(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    return device.run_step(wrapped, _batches.get(instance.output_router) if is_started() else None, args, kwargs)


def _update(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    batch = None
    with _GUARD:
        batch = _batches.get(instance.output_router)
        if batch is not None:
            batch.update_begins(now_ns())
    result = wrapped(*args, **kwargs)
    if batch is not None:
        with _GUARD:
            batch.update_ended()
    return result


def _tokens_on_host(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = wrapped(*args, **kwargs)
    with _GUARD:
        Batch.updating_at(now_ns())
    return result


def _deliver(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    # All states of the batch are up to date here, and nobody has learned of a token yet.
    batch = None
    with _GUARD:
        batch = _batches.get(instance)
        if batch is not None:
            batch.complete()
    result = wrapped(*args, **kwargs)
    if batch is not None:
        with _GUARD:
            batch.delivered()
    return result


def _fail(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    batch = None
    with _GUARD:
        batch = _batches.get(instance)
        state, error = _state_and_error(*args, **kwargs)
        if batch is not None:
            batch.failed(state.request_id, error)
    result = wrapped(*args, **kwargs)
    if batch is not None:
        with _GUARD:
            batch.delivered()
    return result


def _state_and_error(state: Any, error: BaseException) -> tuple[Any, BaseException]:
    return state, error


def _fail_all(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    with _GUARD:
        batch = _batches.get(instance.output_router)
        if batch is not None:
            batch.abandon_plans(now_ns())
    return wrapped(*args, **kwargs)


def _clear_cancelled(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    cancelled = wrapped(*args, **kwargs)
    if cancelled:
        with _GUARD:
            batch = _schedulers.get(instance)
            if batch is not None:
                for state in cancelled:
                    batch.cancelled(state)
    return cancelled


_API = "transformers.generation.continuous_batching.continuous_api"
_IOS = "transformers.generation.continuous_batching.input_outputs"
_RUNNER = "transformers.generation.continuous_batching.model_runner"
_SCHEDULER = "transformers.generation.continuous_batching.scheduler"
_REQUESTS = "transformers.generation.continuous_batching.requests"
TARGETS = (
    Target(_API, "ContinuousBatchingManager.add_request", _add_request, "requests and queue of continuous batching"),
    Target(_REQUESTS, "RequestState.__post_init__", _state_made, "requests and queue of continuous batching"),
    Target(_API, "ContinuousBatchProcessor.prepare_next_batch", _prepare, "steps of continuous batching"),
    Target(_API, "ContinuousBatchProcessor._generation_step", _compute, "device time of continuous batching"),
    Target(_RUNNER, "ModelRunner.compute_batch", device.compute, "device time of continuous batching"),
    Target(_RUNNER, "ModelRunner._get_forward_fn", device.forward_function, "layers of compiled continuous batching"),
    Target(_API, "ContinuousBatchProcessor.update_batch", _update, "tokens of continuous batching"),
    Target(_API, "ContinuousBatchProcessor.fail_all_requests", _fail_all, "last step before a crash"),
    Target(_IOS, "ContinuousBatchingAsyncIOs.prepare_batch_update", _tokens_on_host, "token times with async batching"),
    Target(_API, "OutputRouter.deliver_batch", _deliver, "end of requests in continuous batching"),
    Target(_API, "OutputRouter.fail_and_deliver", _fail, "errors in continuous batching"),
    Target(_SCHEDULER, "Scheduler.clear_cancelled_requests", _clear_cancelled, "cancellations in continuous batching"),
)
