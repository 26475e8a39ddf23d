"""Calls of vLLM in the API process, from text to text: what the engine core is given and what comes back.

In: renderers (chat template, tokenizer), `InputProcessor.process_inputs` and `OutputProcessor`.
Out: the `tokenize` stage, the mark by which the engine core records the request, detokenisation, and, for a call
outside any request (`LLM.generate`, an `AsyncLLM` of one's own), the request itself.

A call inside a request belongs to it, with all its prompts and sequences. Beam search makes a call of every beam and
token: it is one `decode` stage instead, and its sequences count in the steps only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from tailspan import attributes as attr
from tailspan.asgi import TRACESTATE_MEMBER, exchange_of
from tailspan.asgi_timing import Timings
from tailspan.engines import vllm_marks
from tailspan.engines.offline import offline_request
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import AttributeSet, Request, current_request, now_ns
from tailspan.recorder.process import is_started, tells_callers

_CALL, _CALLS = "tailspan_call", "tailspan_calls"
_GUARD = Guard("vllm.calls")
_POOLING = "embeddings"
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

_rendered: ContextVar[tuple[int, int] | None] = ContextVar("tailspan_rendered", default=None)
"""When a prompt outside any request was rendered, for the request that is about to be made of it."""
in_beam_search: ContextVar[bool] = ContextVar("tailspan_beam_search", default=False)
"""Whether vLLM is being called for beams, of which nobody is a user request."""


class Call:
    """One user request in vLLM. `owned`: begun by its prompt, not by a caller, so that its last output also ends it."""

    __slots__ = ("open", "owned", "request")

    def __init__(self, request: Request, owned: bool) -> None:
        """No sequence yet."""
        self.request = request
        self.owned = owned
        self.open = 0
        """Sequences whose output is awaited."""

    def closed(self, at_ns: int, outcome: str = "ok", error_type: str = "") -> None:
        """A sequence is over."""
        self.open -= 1
        if self.owned and self.open <= 0:
            self.request.end(at_ns, outcome, error_type)


def _render(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    begin_ns = now_ns()
    result = wrapped(*args, **kwargs)
    with _GUARD:
        _tokenized(begin_ns)
    return result


def _render_async(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    async def render() -> Any:
        begin_ns = now_ns()
        with _GUARD:
            request = current_request.get()
            exchange = exchange_of(request) if request is not None else None
            if exchange is not None:
                exchange.received(begin_ns)
        result = await wrapped(*args, **kwargs)
        with _GUARD:
            _tokenized(begin_ns)
        return result

    return render()


def _tokenized(begin_ns: int) -> None:
    request = current_request.get()
    end_ns = now_ns()
    if request is None:
        _rendered.set((begin_ns, end_ns))
    elif is_started():
        request.stage("tokenize", begin_ns, end_ns)


def _process_inputs(wrapped: Function, processor: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not is_started() or in_beam_search.get():
        return wrapped(*args, **kwargs)
    begin_ns = now_ns()
    try:
        result = wrapped(*args, **kwargs)
    except Exception as error:
        with _GUARD:
            _refused(processor, begin_ns, type(error).__name__)
        raise
    with _GUARD:
        call = _call(processor, result, begin_ns)
        given: Mapping[str, str] | None = result.trace_headers
        if call.owned and not given:
            given = {"traceparent": call.request.traceparent, "tracestate": TRACESTATE_MEMBER.decode()}
        # What is not recorded in this process must not be in the next either.
        if call.request.recorded:
            result.trace_headers = vllm_marks.mark(call.request, call, given)
    return result


def _call(processor: Any, made: Any, begin_ns: int) -> Call:
    """Return the call that a new `EngineCoreRequest` belongs to."""
    request = current_request.get() or _expected.get(made.request_id)
    owned = request is None or request.ended
    if request is None or owned:
        request = _begin(processor, begin_ns, is_pooling=made.sampling_params is None)
    else:
        known = getattr(request, _CALL, None)
        if isinstance(known, Call):
            return known
    call = Call(request, owned)
    setattr(request, _CALL, call)
    request.describe(_asked(getattr(made.lora_request, "lora_name", None), made.priority), made.request_id)
    return call


def _refused(processor: Any, begin_ns: int, error_type: str) -> None:
    if current_request.get() is None and not _expected:
        _begin(processor, begin_ns, is_pooling=False).end(now_ns(), "error", error_type)


def _begin(processor: Any, begin_ns: int, *, is_pooling: bool) -> Request:
    rendered = _rendered.get()
    _rendered.set(None)
    request = offline_request(
        min(begin_ns, rendered[0]) if rendered is not None else begin_ns, _model(processor),
        operation=_POOLING if is_pooling else "text_completion",
    )  # fmt: skip
    if rendered is not None:
        request.stage("tokenize", *rendered)
    return request


@lru_cache(maxsize=256)
def _asked(lora: str | None, priority: int) -> AttributeSet:
    return AttributeSet(({attr.LORA: lora} if lora else {}) | ({attr.PRIORITY: priority} if priority else {}))


def _model(processor: Any) -> str:
    config = processor.vllm_config.model_config
    names = config.served_model_name
    return str((names[0] if isinstance(names, list) else names) or config.model)


_expected: dict[str, Request] = {}
"""Requests whose prompts vLLM processes in another thread, by the id that it was given."""


def _add_async(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    request = current_request.get()
    if request is None or request.ended:
        return wrapped(*args, **kwargs)

    async def add() -> Any:
        request_id = args[0] if args else kwargs["request_id"]
        _expected[request_id] = request
        try:
            return await wrapped(*args, **kwargs)
        finally:
            _expected.pop(request_id, None)

    return add()


def _expect_output(wrapped: Function, processor: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = wrapped(*args, **kwargs)
    with _GUARD:
        made = args[0] if args else kwargs["request"]
        call = vllm_marks.call_of(made.trace_headers)
        calls = _calls(processor)
        if call is not None and made.request_id not in calls:
            calls[made.request_id] = call
            call.open += 1
    return result


def _calls(processor: Any) -> dict[str, Call]:
    """Return the calls whose output a processor awaits, by the engine's id of the sequence."""
    calls: dict[str, Call] | None = getattr(processor, _CALLS, None)
    if calls is None:
        calls = {}
        setattr(processor, _CALLS, calls)
    return calls


def _process_outputs(wrapped: Function, processor: Any, args: Arguments, kwargs: Keywords) -> Any:
    begin_ns = now_ns()
    result = wrapped(*args, **kwargs)
    with _GUARD:
        calls = getattr(processor, _CALLS, None)
        if calls:
            _text_ready(processor, calls, args[0] if args else kwargs["engine_core_outputs"], begin_ns)
    return result


def _text_ready(processor: Any, calls: dict[str, Call], outputs: Any, begin_ns: int) -> None:
    end_ns = now_ns()
    busy_ns = (end_ns - begin_ns) // max(1, len(outputs))
    states, tells = processor.request_states, tells_callers()
    for output in outputs:
        call = calls.get(output.request_id)
        if call is None:
            continue
        call.request.has_output = True
        call.request.text_ready(end_ns, busy_ns)
        if tells:
            _note_times(call.request, output, end_ns)
        if output.request_id not in states:
            del calls[output.request_id]
            # A stop string ends it without the engine's knowledge.
            reason = str(output.finish_reason) if output.finish_reason is not None else "stop"
            call.request.attribute(attr.GEN_AI_FINISH_REASONS, reason)
            if reason == "error":
                _engine_error(call)
            call.closed(now_ns(), "error" if reason == "error" else "ok")


def _note_times(request: Request, output: Any, at_ns: int) -> None:
    if request.timings is None and (times := vllm_marks.times_of(output.trace_headers)) is not None:
        request.timings = Timings(*times)
    if request.timings is not None:
        request.timings.token(at_ns)


def _engine_error(call: Call) -> None:
    exchange = exchange_of(call.request)
    if exchange is not None:
        exchange.engine_error("engine_error", reported=False)


def _abort(wrapped: Function, processor: Any, args: Arguments, kwargs: Keywords) -> Any:
    aborted = wrapped(*args, **kwargs)
    with _GUARD:
        calls = getattr(processor, _CALLS, {})
        at_ns = now_ns()
        for request_id in aborted or ():
            call = calls.pop(request_id, None)
            if call is not None:
                call.request.attribute(attr.GEN_AI_FINISH_REASONS, "abort")
                call.closed(at_ns, "cancelled")
    return aborted


def _engine_died(wrapped: Function, processor: Any, args: Arguments, kwargs: Keywords) -> Any:
    with _GUARD:
        error = args[0] if args else kwargs["e"]
        calls = getattr(processor, _CALLS, {})
        at_ns = now_ns()
        while calls:
            _, call = calls.popitem()
            exchange = exchange_of(call.request)
            if exchange is not None:
                exchange.engine_error(type(error).__name__, reported=True)
            call.closed(at_ns, "error", type(error).__name__)
    return wrapped(*args, **kwargs)


_RENDERER, _INPUT = "vllm.renderers.base", "vllm.v1.engine.input_processor"
_OUTPUT, _SERVING = "vllm.v1.engine.output_processor", "vllm.entrypoints.openai.serving_engine"
TARGETS = (
    Target(_RENDERER, "BaseRenderer.render_chat", _render, "tokenize offline: chat template and tokenizer", "0.18"),
    Target(_RENDERER, "BaseRenderer.render_cmpl", _render, "tokenize offline", "0.18"),
    Target(_RENDERER, "BaseRenderer.render_chat_async", _render_async, "tokenize: chat template, tokenizer", "0.18"),
    Target(_RENDERER, "BaseRenderer.render_cmpl_async", _render_async, "tokenize", "0.18"),
    Target(_SERVING, "OpenAIServing._preprocess_chat", _render_async, "tokenize: chat template, tokenizer", "", "0.18"),
    Target(_SERVING, "OpenAIServing._tokenize_prompt_input_async", _render_async, "tokenize", "", "0.18"),
    Target(_INPUT, "InputProcessor.process_inputs", _process_inputs, "everything that happens in the engine core"),
    Target("vllm.v1.engine.async_llm", "AsyncLLM.add_request", _add_async, "requests with prompts as text"),
    Target(_OUTPUT, "OutputProcessor.add_request", _expect_output, "detokenize, TTFT"),
    Target(_OUTPUT, "OutputProcessor.process_outputs", _process_outputs, "detokenize, TTFT, finish reasons"),
    Target(_OUTPUT, "OutputProcessor.abort_requests", _abort, "the end of aborted offline requests"),
    Target(_OUTPUT, "OutputProcessor.propagate_error", _engine_died, "the error when the engine core dies"),
)
