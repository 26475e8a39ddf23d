"""Prompts of vLLM in the API process: chat template and tokenizer, and the request that a prompt begins by itself.

In: `BaseRenderer.render_*` and its older names.
Out: the `tokenize` stage. Outside any request (`LLM.generate`, an `AsyncLLM` of one's own) its time is kept for the
request that is about to be made of the prompt; a prompt that is refused there is a request that ended with the error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from tailspan.asgi import exchange_of
from tailspan.engines.offline import offline_request
from tailspan.engines.transformers_models import thread
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import Request, current_request, now_ns
from tailspan.recorder.process import is_started

_GUARD = Guard("vllm.prompts")
_POOLING, _TOLD = "embeddings", "tailspan_told"
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


class Rendered(NamedTuple):
    """What one call of a renderer made, and when; a prompt is taken out when a request is made of it."""

    prompts: list[Any]
    begin_ns: int
    end_ns: int


_rendered: ContextVar[Rendered | None] = ContextVar("tailspan_rendered", default=None)
"""The last prompts that were rendered outside any request. Start-up and token counting render as well."""


class Processing:
    """A prompt on its way through `process_inputs`, perhaps in a thread that knows nothing of its caller."""

    __slots__ = ("rendered", "request", "since_ns")

    def __init__(self, request: Request | None, since_ns: int) -> None:
        """`request`: whose prompt it is, if that is known; `since_ns`: when its caller gave it."""
        self.request = request
        self.since_ns = since_ns
        self.rendered: Rendered | None = None
        """Its rendering, if that happens on the way."""


processing: ContextVar[Processing | None] = ContextVar("tailspan_processing", default=None)


class Search:
    """A beam search under way: `begin_ns` when its prompts were ready."""

    __slots__ = ("begin_ns",)

    def __init__(self, begin_ns: int) -> None:
        """Begin, with the prompts ready."""
        self.begin_ns = begin_ns


in_search: ContextVar[Search | None] = ContextVar("tailspan_beam_search", default=None)
"""Set while vLLM is called for beams, of which nobody is a user request."""


def begin(owner: Any, begin_ns: int, prompt: Any = None, *, is_pooling: bool = False) -> Request:
    """Begin a request outside any other; with the rendering of its prompt, if that was outside as well."""
    rendered = _rendering_of(prompt)
    request = offline_request(
        min(begin_ns, rendered.begin_ns) if rendered is not None else begin_ns, _model(owner),
        operation=_POOLING if is_pooling else "text_completion",
    )  # fmt: skip
    if rendered is not None:
        request.stage("tokenize", rendered.begin_ns, rendered.end_ns)
    return request


def refused(owner: Any, begin_ns: int, error: Exception, prompt: Any = None) -> None:
    """Record a prompt outside any request of which vLLM will make none."""
    outer = current_request.get()
    if outer is None or outer.ended:
        request, end_ns = begin(owner, begin_ns, prompt), now_ns()
        request.stage("tokenize", begin_ns, end_ns)
        request.end(end_ns, "error", type(error).__name__)


def _rendering_of(prompt: Any) -> Rendered | None:
    under_way = processing.get()
    if under_way is not None and under_way.rendered is not None:
        return under_way.rendered
    rendered = _rendered.get()
    if rendered is not None:
        for index, known in enumerate(rendered.prompts):
            if known is prompt:
                del rendered.prompts[index]
                return rendered
    return None


def _model(owner: Any) -> str:
    config = getattr(owner, "model_config", None) or owner.vllm_config.model_config
    names = config.served_model_name
    return str((names[0] if isinstance(names, list) else names) or config.model)


def _render(wrapped: Function, renderer: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not is_started():
        return wrapped(*args, **kwargs)
    begin_ns = now_ns()
    # The hook of the tokenizer itself would count the same time again.
    outer, thread.in_text = thread.in_text, True
    try:
        result = wrapped(*args, **kwargs)
    except Exception as error:
        if processing.get() is None:
            with _GUARD:
                refused(renderer, begin_ns, error)
        raise
    finally:
        thread.in_text = outer
    with _GUARD:
        _tokenized(begin_ns, result)
    return result


def _render_async(wrapped: Function, renderer: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not is_started():
        return wrapped(*args, **kwargs)

    async def render() -> Any:
        begin_ns = now_ns()
        with _GUARD:
            request = current_request.get()
            exchange = exchange_of(request) if request is not None else None
            if exchange is not None:
                exchange.received(begin_ns)
        try:
            result = await wrapped(*args, **kwargs)
        except Exception as error:
            with _GUARD:
                refused(renderer, begin_ns, error)
            raise
        with _GUARD:
            _tokenized(begin_ns, result)
        return result

    return render()


def _tokenized(begin_ns: int, result: Any) -> None:
    end_ns = now_ns()
    request, under_way = current_request.get(), processing.get()
    if request is not None and not request.ended:
        request.stage("tokenize", begin_ns, end_ns)
        _tell_search(request, end_ns)
    elif under_way is None:
        _rendered.set(Rendered(_prompts(result), begin_ns, end_ns))
    else:
        under_way.rendered = Rendered([], begin_ns, end_ns)
        if under_way.request is not None:
            # The wait for the thread belongs to it.
            under_way.request.stage("tokenize", under_way.since_ns, end_ns, end_ns - begin_ns)


def _tell_search(request: Request, end_ns: int) -> None:
    search = in_search.get()
    if search is not None:
        search.begin_ns = end_ns
        request.has_output = True  # the tokenizer that is called next makes text of the beams


def _prompts(result: Any) -> list[Any]:
    # A chat gives its conversations as well.
    made = result[1] if isinstance(result, tuple) and len(result) == 2 else result
    return list(made) if isinstance(made, (list, tuple)) else []


_CHAT = "tokenize: chat template, tokenizer"


def _renderer(module: str, since: str, until: str) -> tuple[Target, ...]:
    return (
        Target(module, "BaseRenderer.render_chat", _render, f"{_CHAT}, offline", since, until),
        Target(module, "BaseRenderer.render_cmpl", _render, "tokenize offline", since, until),
        Target(module, "BaseRenderer.render_chat_async", _render_async, _CHAT, since, until),
        Target(module, "BaseRenderer.render_cmpl_async", _render_async, "tokenize", since, until),
    )


_SERVING = "OpenAIServing._preprocess_chat"
TARGETS = (
    *_renderer("vllm.renderers.base", "0.17", ""),
    *_renderer("vllm.renderers.protocol", "0.16", "0.17"),
    Target("vllm.entrypoints.openai.engine.serving", _SERVING, _render_async, _CHAT, "0.15", "0.16"),
    Target("vllm.entrypoints.openai.serving_engine", _SERVING, _render_async, _CHAT, "", "0.15"),
    Target("vllm.entrypoints.renderer", "CompletionRenderer.render_prompt_and_embeds", _render_async,
           "tokenize of completions", "", "0.16"),
)  # fmt: skip
