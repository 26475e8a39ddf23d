"""Hooks of `vllm serve` around a call: what its endpoints were asked for, and beam search.

In: `fastapi.routing.run_endpoint_function` (the body is read and parsed, the endpoint begins) and `beam_search`.
Out: model and stream flag of the request; `decode` of beam search as a whole. HTTP itself is `tailspan.asgi`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from tailspan.asgi import exchange_of
from tailspan.engines import asked
from tailspan.engines.vllm_calls import in_beam_search
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import current_request, now_ns
from tailspan.recorder.process import is_started

_GUARD = Guard("vllm.serve")
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def _endpoint(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    if is_started():
        with _GUARD:
            _entered(kwargs["values"])
    return wrapped(*args, **kwargs)


def _entered(values: dict[str, Any]) -> None:
    request = current_request.get()
    exchange = exchange_of(request) if request is not None else None
    if request is None or exchange is None or exchange.model_known:
        return
    for value in values.values():
        if type(value).__module__.startswith("vllm.") and hasattr(value, "model"):
            model = value.model
            exchange.model_known = isinstance(model, str)
            asked.describe(request, model if isinstance(model, str) else "", bool(getattr(value, "stream", False)))
            return


def _beam_search(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    token = in_beam_search.set(True)
    try:
        return wrapped(*args, **kwargs)
    finally:
        in_beam_search.reset(token)


def _beam_search_async(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    found = wrapped(*args, **kwargs)
    return _searching(found) if is_started() else found


async def _searching(found: AsyncIterator[Any]) -> AsyncIterator[Any]:
    begin_ns = now_ns()
    request = current_request.get()
    token = in_beam_search.set(True)
    try:
        async for output in found:
            if request is not None:
                request.has_output = True
            yield output
    finally:
        with _GUARD:
            in_beam_search.reset(token)
            if request is not None:
                request.stage("decode", begin_ns, now_ns())


_BEAMS = "vllm.entrypoints.generate.beam_search"
_OFFLINE, _ONLINE = "beam search without a request for each token", "decode of beam search"
TARGETS = (
    Target("fastapi.routing", "run_endpoint_function", _endpoint, "model of the request, stream flag"),
    Target(f"{_BEAMS}.online", "BeamSearchOnlineMixin.beam_search", _beam_search_async, _ONLINE, "0.22"),
    Target(f"{_BEAMS}.offline", "BeamSearchOfflineMixin.beam_search", _beam_search, _OFFLINE, "0.22"),
    Target("vllm.entrypoints.llm", "LLM.beam_search", _beam_search, _OFFLINE, "", "0.22"),
    Target("vllm.entrypoints.openai.engine.serving", "OpenAIServing.beam_search", _beam_search_async, _ONLINE,
           "0.18", "0.22"),
    Target("vllm.entrypoints.openai.serving_engine", "OpenAIServing.beam_search", _beam_search_async, _ONLINE,
           "", "0.18"),
)  # fmt: skip
