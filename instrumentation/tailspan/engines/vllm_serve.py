"""Hooks of `vllm serve` around a call: what its endpoints were asked for, and beam search.

In: `fastapi.routing.run_endpoint_function` (the body is read and parsed, the endpoint begins) and `beam_search`.
Out: model and stream flag of the request; `decode` of beam search as a whole, and offline the request of one that
nobody began. HTTP itself is `tailspan.asgi`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tailspan import attributes as attr
from tailspan.asgi import exchange_of
from tailspan.engines import asked
from tailspan.engines.vllm_prompts import Search, begin, in_search
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import Request, current_request, now_ns
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


def _beam_search(wrapped: Function, llm: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not is_started():
        return wrapped(*args, **kwargs)
    with _search(llm) as request:
        result = wrapped(*args, **kwargs)
        with _GUARD:
            if request is not None:
                request.attribute(attr.PROMPTS, len(result))
        return result


@contextmanager
def _search(llm: Any) -> Iterator[Request | None]:
    """Measure a search as `tokenize` and `decode` of the current request, or of one that begins and ends with it."""
    search = Search(now_ns())
    request = current_request.get()
    owned = request is None or request.ended
    if owned:
        with _GUARD:
            request = begin(llm, search.begin_ns, is_pooling=False)
    tokens = current_request.set(request), in_search.set(search)
    outcome, error_type = "ok", ""
    try:
        yield request
    except BaseException as error:
        outcome, error_type = "error", type(error).__name__
        raise
    finally:
        current_request.reset(tokens[0])
        in_search.reset(tokens[1])
        with _GUARD:
            end_ns = now_ns()
            if request is not None:
                request.stage("decode", search.begin_ns, end_ns)
            if request is not None and owned:
                request.end(end_ns, outcome, error_type)


def _beam_search_async(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    found = wrapped(*args, **kwargs)
    return _searching(found) if is_started() else found


async def _searching(found: AsyncIterator[Any]) -> AsyncIterator[Any]:
    begin_ns = now_ns()
    request = current_request.get()
    token = in_search.set(Search(begin_ns))
    try:
        async for output in found:
            if request is not None:
                request.has_output = True
            yield output
    finally:
        with _GUARD:
            in_search.reset(token)
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
           "0.15", "0.22"),
    Target("vllm.entrypoints.openai.serving_engine", "OpenAIServing.beam_search", _beam_search_async, _ONLINE,
           "", "0.15"),
)  # fmt: skip
