"""Calls of vLLM in the API process, from text to text: what the engine core is given and what comes back.

In: `InputProcessor.process_inputs`, `AsyncLLM.add_request` and `OutputProcessor`; prompts are `vllm_prompts`.
Out: the mark by which the engine core records the request, detokenisation, and, for a call outside any request
(`LLM.generate`, an `AsyncLLM` of one's own), the request itself.

A call inside a request belongs to it, with all its prompts and sequences. Beam search makes a call of every beam and
token: it is one `decode` stage instead, and its sequences count in the steps only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import lru_cache
from typing import Any

from tailspan import attributes as attr
from tailspan.asgi import TRACESTATE_MEMBER, exchange_of
from tailspan.asgi_timing import Timings
from tailspan.engines import vllm_marks, vllm_prompts
from tailspan.engines.vllm_prompts import Processing, Search, in_search, processing
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import AttributeSet, Request, current_request, now_ns
from tailspan.recorder.process import is_started, tells_callers

_CALL, _CALLS = "tailspan_call", "tailspan_calls"
_GUARD = Guard("vllm.calls")
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


class Call:
    """One user request in vLLM. `owned`: begun by its prompt, not by a caller, so that its last output also ends it."""

    __slots__ = ("is_described", "open", "owned", "request", "since_ns")

    def __init__(self, request: Request, *, owned: bool, since_ns: int) -> None:
        """No sequence yet; `since_ns`: when vLLM got its first prompt."""
        self.request = request
        self.owned = owned
        self.since_ns = since_ns
        self.is_described = False
        self.open = 0
        """Sequences whose output is awaited."""

    def describe(self, made: Any) -> None:
        """Say of the request what its first `EngineCoreRequest` says."""
        if not self.is_described:
            self.is_described = True
            lora = getattr(made.lora_request, "lora_name", None)
            self.request.describe(_asked(lora, made.priority), made.request_id)

    def closed(self, at_ns: int, outcome: str = "ok", error_type: str = "") -> None:
        """A sequence is over."""
        self.open -= 1
        if self.owned and self.open <= 0:
            self.request.end(at_ns, outcome, error_type)

    def failed(self, error: BaseException) -> None:
        """vLLM did not take it in; sequences that it already had are given up by vLLM itself."""
        if self.owned and self.open <= 0:
            end_ns, is_error = now_ns(), isinstance(error, Exception)
            self.request.stage("tokenize", self.since_ns, end_ns, 0)
            outcome = "error" if is_error else "cancelled"
            self.request.end(end_ns, outcome, type(error).__name__ if is_error else "")


@lru_cache(maxsize=256)
def _asked(lora: str | None, priority: int) -> AttributeSet:
    return AttributeSet(({attr.LORA: lora} if lora else {}) | ({attr.PRIORITY: priority} if priority else {}))


def _process_inputs(wrapped: Function, processor: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not is_started() or in_search.get() is not None:
        return wrapped(*args, **kwargs)
    begin_ns = now_ns()
    request_id, prompt, *_ = _given(*args, **kwargs)
    expected = _expected.get(request_id)
    known = (expected.request, expected.since_ns) if expected is not None else (None, begin_ns)
    under_way = Processing(*known)
    token = processing.set(under_way)
    try:
        result = wrapped(*args, **kwargs)
    except Exception as error:
        with _GUARD:
            if expected is None:
                vllm_prompts.refused(processor, begin_ns, error, prompt)
        raise
    else:
        with _GUARD:
            _mark(expected or _call(processor, prompt, result, begin_ns), result, under_way)
        return result
    finally:
        processing.reset(token)


def _given(request_id: str = "", prompt: Any = None, params: Any = None, *_: Any, **__: Any) -> tuple[str, Any, Any]:
    return request_id, prompt, params


def _mark(call: Call, made: Any, under_way: Processing) -> None:
    is_rendered = under_way.rendered is not None or call.request.begin_ns < call.since_ns
    if call.owned and not call.is_described and not is_rendered:
        # The caller had the token ids: checking them is all there was to do.
        call.request.stage("tokenize", call.since_ns, now_ns())
    call.describe(made)
    given: Mapping[str, str] | None = made.trace_headers
    if call.owned and not given:
        given = {"traceparent": call.request.traceparent, "tracestate": TRACESTATE_MEMBER.decode()}
    # What is not recorded in this process must not be in the next either.
    if call.request.recorded:
        made.trace_headers = vllm_marks.mark(call.request, call, given)


def _call(processor: Any, prompt: Any, made: Any, begin_ns: int) -> Call:
    """Return the call that a new `EngineCoreRequest` belongs to."""
    request = current_request.get()
    if request is not None and not request.ended:
        return _call_of(request)
    request = vllm_prompts.begin(processor, begin_ns, prompt, is_pooling=made.sampling_params is None)
    return Call(request, owned=True, since_ns=begin_ns)


def _call_of(request: Request) -> Call:
    """Return the call of a request that others began, with all its prompts."""
    call = getattr(request, _CALL, None)
    if not isinstance(call, Call):
        call = Call(request, owned=False, since_ns=now_ns())
        setattr(request, _CALL, call)
    return call


_expected: dict[str, Call] = {}
"""Calls whose prompt is on its way through `AsyncLLM`, perhaps in another thread, by the id that it was given."""


def _add_async(wrapped: Function, engine: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not is_started() or in_search.get() is not None:
        return wrapped(*args, **kwargs)
    return _add(wrapped, engine, args, kwargs)


async def _add(wrapped: Function, engine: Any, args: Arguments, kwargs: Keywords) -> Any:
    request_id, call, token = "", None, None
    with _GUARD:
        request_id, prompt, params = _given(*args, **kwargs)
        # A prompt that itself comes bit by bit makes several requests of the engine, and is not traced.
        if isinstance(prompt, AsyncGenerator):
            token = in_search.set(Search(0))
        elif not hasattr(prompt, "trace_headers"):  # not processed, so not marked, before
            request = current_request.get()
            if request is None or request.ended:
                is_pooling, since_ns = not hasattr(params, "max_tokens"), now_ns()
                request = vllm_prompts.begin(engine, since_ns, prompt, is_pooling=is_pooling)
                call = Call(request, owned=True, since_ns=since_ns)
            else:
                call = _call_of(request)
            _expected[request_id] = call
    try:
        return await wrapped(*args, **kwargs)
    except BaseException as error:
        with _GUARD:
            if call is not None:
                call.failed(error)
        raise
    finally:
        if _expected.get(request_id) is call:
            _expected.pop(request_id, None)
        if token is not None:
            in_search.reset(token)


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


_INPUT, _OUTPUT = "vllm.v1.engine.input_processor", "vllm.v1.engine.output_processor"
TARGETS = (
    *vllm_prompts.TARGETS,
    Target(_INPUT, "InputProcessor.process_inputs", _process_inputs, "everything that happens in the engine core"),
    Target("vllm.v1.engine.async_llm", "AsyncLLM.add_request", _add_async, "requests with prompts as text"),
    Target(_OUTPUT, "OutputProcessor.add_request", _expect_output, "detokenize, TTFT"),
    Target(_OUTPUT, "OutputProcessor.process_outputs", _process_outputs, "detokenize, TTFT, finish reasons"),
    Target(_OUTPUT, "OutputProcessor.abort_requests", _abort, "the end of aborted offline requests"),
    Target(_OUTPUT, "OutputProcessor.propagate_error", _engine_died, "the error when the engine core dies"),
)
