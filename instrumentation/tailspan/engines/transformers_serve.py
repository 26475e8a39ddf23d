"""Hooks of `transformers serve`: its endpoint handlers and the thread that runs `generate()` for them.

In: `handle_request` (the end of `receive`), the generate managers (the begin of the queue of sequential generation),
and `InferenceThread`, whose calls keep the context of the request that submitted them.
Out: model, stream flag and response id of the request; QUEUED of sequential generation.
Streams are in `transformers_text`, continuous batching is in `transformers_batching`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from tailspan.asgi import exchange_of
from tailspan.engines import asked
from tailspan.engines.transformers_generate import submitted_ns, waiting_calls
from tailspan.engines.transformers_models import pool
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import current_request, now_ns

_GUARD = Guard("transformers.serve")
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def _handle(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    with _GUARD:
        _entered(instance, *args, **kwargs)
    return wrapped(*args, **kwargs)


def _entered(handler: Any, body: Any, request_id: str = "") -> None:
    at_ns = now_ns()
    request = current_request.get()
    exchange = exchange_of(request) if request is not None else None
    if request is None or exchange is None:
        return
    exchange.received(at_ns)
    if not isinstance(body, dict):  # the transcription endpoint reads a form by itself
        return
    model = body.get("model") or getattr(handler.model_manager, "force_model", None)
    exchange.model_known = isinstance(model, str)
    asked.describe(request, model if isinstance(model, str) else "", bool(body.get("stream")), request_id)


def _generate(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    with _GUARD:
        request = current_request.get()
        if request is not None:
            model = args[0] if args else kwargs["model"]
            pool.first(model).queued(request.key, now_ns())
            submitted_ns.set(-1)
    return wrapped(*args, **kwargs)


def _submit(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    with _GUARD:
        function, *rest = args
        context = copy_context()
        context.run(_submitted, instance)
        args = (partial(context.run, function), *rest)
    return wrapped(*args, **kwargs)


def _submitted(inference_thread: Any) -> None:
    if submitted_ns.get() >= 0:
        submitted_ns.set(now_ns())
    waiting_calls.set(inference_thread._queue.qsize)


def _stream_error(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> None:
    wrapped(*args, **kwargs)
    with _GUARD:
        request = current_request.get()
        exchange = exchange_of(request) if request is not None else None
        if exchange is not None:
            exchange.engine_error("", reported=True)


_SERVING = "transformers.cli.serving"
_UTILS = f"{_SERVING}.utils"
_RECEIVE = "exact end of receive; model and id of the request"
TARGETS = (
    Target(f"{_SERVING}.chat_completion", "ChatCompletionHandler.handle_request", _handle, _RECEIVE),
    Target(f"{_SERVING}.completion", "CompletionHandler.handle_request", _handle, _RECEIVE),
    Target(f"{_SERVING}.response", "ResponseHandler.handle_request", _handle, _RECEIVE),
    Target(f"{_SERVING}.systemone", "SystemOneHandler.handle_request", _handle, _RECEIVE, "5.20"),
    Target(f"{_SERVING}.transcription", "TranscriptionHandler.handle_request", _handle, _RECEIVE),
    Target(_UTILS, "GenerateManager.generate_streaming", _generate, "queue of sequential generation"),
    Target(_UTILS, "GenerateManager.generate_non_streaming", _generate, "queue of sequential generation"),
    Target(_UTILS, "InferenceThread.submit", _submit, "requests of sequential generation"),
    Target(_UTILS, "InferenceThread.async_submit", _submit, "requests of sequential generation"),
    Target(_UTILS, "_StreamError.__init__", _stream_error, "errors inside a stream"),
)
