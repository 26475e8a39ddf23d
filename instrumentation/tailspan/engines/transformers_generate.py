"""Hooks of `GenerationMixin.generate`: greedy, sampling, beam search, assisted decoding, chunked prefill, streamers.

In: the call itself, and the two functions that every decoding loop calls once an iteration:
`StoppingCriteriaList.__call__` with the new ids, `_has_unfinished_sequences` when the host has read whether to go on.
Out: one request (the running one, else a new root `generate`), one step for each forward pass.
The outermost call of a thread counts; an assistant's own `generate()` is part of the outer step. A call with
`cache_implementation="paged"` hands over to continuous batching, which makes one request for each prompt.
Limit: beam search on a GPU is timed by the host, which may run ahead of the device within an iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from tailspan.engines.offline import offline_request
from tailspan.engines.transformers_models import model_name, thread
from tailspan.engines.transformers_run import Run
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import current_request, now_ns
from tailspan.recorder.process import is_started

submitted_ns: ContextVar[int] = ContextVar("tailspan_submitted_ns", default=0)
"""When a server handed this call to its inference thread; -1 once the queue has been recorded; 0 without a server."""
waiting_calls: ContextVar[Callable[[], int] | None] = ContextVar("tailspan_waiting_calls", default=None)
"""How many calls wait behind this one in the server's inference thread."""

_GUARD = Guard("transformers.generate")
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def _generate(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    if thread.run is not None:
        return _nested(wrapped, args, kwargs)
    run = None
    with _GUARD:
        run = _begin(instance, kwargs)
    if run is None:
        return wrapped(*args, **kwargs)
    thread.run = run
    token = current_request.set(run.request)
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        thread.run = None
        with _GUARD:
            run.raised(error)
        raise
    finally:
        thread.run = None
        current_request.reset(token)
    with _GUARD:
        run.returned(result)
    return result


def _nested(wrapped: Function, args: Arguments, kwargs: Keywords) -> Any:
    # A decoding method from the hub is the same call again; everything else is an assistant.
    if kwargs.get("custom_generate") is not None:
        return wrapped(*args, **kwargs)
    thread.nested += 1
    try:
        return wrapped(*args, **kwargs)
    finally:
        thread.nested -= 1


def _begin(model: Any, kwargs: Keywords) -> Run | None:
    if not is_started() or kwargs.get("cache_implementation") == "paged":
        return None
    begin_ns = now_ns()
    request = current_request.get()
    owned = request is None
    if request is None:
        request = offline_request(begin_ns, model_name(model))
    run = Run(model, request, owned, begin_ns, kwargs.get("streamer"), waiting_calls.get())
    at_ns = submitted_ns.get()
    if at_ns >= 0:
        run.queued(at_ns or begin_ns)
    return run


def _prepared(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    config = wrapped(*args, **kwargs)
    if thread.run is not None and not thread.nested:
        with _GUARD:
            thread.run.prepared(config, kwargs["model_input_name"], kwargs["inputs_tensor"], kwargs["input_ids_length"])
    return config


def _assisted(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    if thread.run is not None and not thread.nested:
        thread.run.puts_before_criteria = True
    return wrapped(*args, **kwargs)


def _criteria(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = wrapped(*args, **kwargs)
    run = thread.run
    if run is not None and not thread.nested:
        with _GUARD:
            run.sampled(args[0] if args else kwargs["input_ids"])
    return result


def _iteration(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    run = thread.run
    if run is not None and not thread.nested:
        with _GUARD:
            run.next_iteration()
    return wrapped(*args, **kwargs)


_UTILS = "transformers.generation.utils"
TARGETS = (
    Target(_UTILS, "GenerationMixin.generate", _generate, "generate() requests"),
    Target(_UTILS, "GenerationMixin._prepare_generated_length", _prepared, "prompt length and number of prompts"),
    Target(_UTILS, "GenerationMixin._assisted_decoding", _assisted, "exact step times of assisted decoding"),
    Target(_UTILS, "GenerationMixin._has_unfinished_sequences", _iteration, "step times on a GPU"),
    Target(
        "transformers.generation.stopping_criteria",
        "StoppingCriteriaList.__call__",
        _criteria,
        "steps of generate(): prefill, decode, token times",
    ),
)
