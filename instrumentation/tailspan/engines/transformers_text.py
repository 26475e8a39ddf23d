"""Hooks where ids become text and text becomes ids: tokenizers, processors and streamers.

A call inside a request is part of `tokenize` until the request has output, and detokenisation from then on; the
outermost call of a nest counts. A call outside any request, in a script around `generate()`, is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from tailspan.engines.transformers_models import thread
from tailspan.guard import Guard
from tailspan.patching import Target
from tailspan.recorder import Request, current_request, now_ns

_GUARD = Guard("transformers.text")
_batch_streams: WeakKeyDictionary[Any, Request] = WeakKeyDictionary()
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def _encode(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    request = current_request.get()
    if request is None or request.has_output or thread.in_text or thread.run is not None:
        return wrapped(*args, **kwargs)
    return _measured(wrapped, args, kwargs, request)


def _decode(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    request = current_request.get()
    if request is None or thread.in_text or (thread.run is not None and not request.has_output):
        return wrapped(*args, **kwargs)
    return _measured(wrapped, args, kwargs, request)


def _measured(wrapped: Function, args: Arguments, kwargs: Keywords, request: Request) -> Any:
    thread.in_text = True
    begin_ns = now_ns()
    try:
        return wrapped(*args, **kwargs)
    finally:
        thread.in_text = False
        with _GUARD:
            end_ns = now_ns()
            if request.has_output:
                request.text_ready(end_ns, end_ns - begin_ns)
            else:
                request.stage("tokenize", begin_ns, end_ns)


def _put(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    run = thread.run
    if run is None or thread.nested or thread.in_text:
        return wrapped(*args, **kwargs)
    begin_ns = now_ns()
    is_output = False
    with _GUARD:
        is_output = run.put_begins(begin_ns)
        if is_output:
            run.request.has_output = True
    thread.in_text = True
    try:
        result = wrapped(*args, **kwargs)
    finally:
        thread.in_text = False
    with _GUARD:
        end_ns = now_ns()
        run.put_ended(end_ns)
        if is_output:
            run.request.text_ready(end_ns, end_ns - begin_ns)
    return result


def _end(wrapped: Function, _: Any, args: Arguments, kwargs: Keywords) -> Any:
    run = thread.run
    if run is None or thread.nested or thread.in_text:
        return wrapped(*args, **kwargs)
    with _GUARD:
        run.stream_ends()
    begin_ns = now_ns()
    thread.in_text = True
    try:
        result = wrapped(*args, **kwargs)
    finally:
        thread.in_text = False
    with _GUARD:
        end_ns = now_ns()
        run.request.text_ready(end_ns, end_ns - begin_ns)
    return result


def _batch_stream(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> None:
    wrapped(*args, **kwargs)
    with _GUARD:
        request = current_request.get()
        if request is not None:
            _batch_streams[instance] = request


def _batch_put(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
    # Called by the event loop outside the request's context: the streamer remembers whose it is.
    request = _batch_streams.get(instance)
    if request is None:
        return wrapped(*args, **kwargs)
    begin_ns = now_ns()
    has_tokens = False
    with _GUARD:
        output = args[0] if args else kwargs["output"]
        has_tokens = len(output.generated_tokens) > instance._prev_len
        request.has_output = request.has_output or has_tokens
    result = wrapped(*args, **kwargs)
    if has_tokens:
        with _GUARD:
            end_ns = now_ns()
            request.text_ready(end_ns, end_ns - begin_ns)
    return result


_TOKENIZER = "transformers.tokenization_utils_base"
_PROCESSOR = "transformers.processing_utils"
_STREAMERS = "transformers.generation.streamers"
_SERVING = "transformers.cli.serving.utils"
TARGETS = (
    Target(_TOKENIZER, "PreTrainedTokenizerBase.__call__", _encode, "tokenize"),
    Target(_TOKENIZER, "PreTrainedTokenizerBase.encode", _encode, "tokenize"),
    Target(_TOKENIZER, "PreTrainedTokenizerBase.apply_chat_template", _encode, "tokenize: chat template"),
    Target(_TOKENIZER, "PreTrainedTokenizerBase.decode", _decode, "detokenize"),
    Target(_TOKENIZER, "PreTrainedTokenizerBase.batch_decode", _decode, "detokenize"),
    Target(_PROCESSOR, "ProcessorMixin.__call__", _encode, "tokenize of multimodal inputs"),
    Target(_PROCESSOR, "ProcessorMixin.apply_chat_template", _encode, "tokenize of multimodal inputs"),
    Target(_STREAMERS, "TextStreamer.put", _put, "detokenize of streamed text"),
    Target(_STREAMERS, "TextStreamer.end", _end, "detokenize of streamed text"),
    Target(_SERVING, "DirectStreamer.put", _put, "detokenize in transformers serve"),
    Target(_SERVING, "DirectStreamer.end", _end, "detokenize in transformers serve"),
    Target(_SERVING, "CBStreamer.__init__", _batch_stream, "detokenize in transformers serve, continuous batching"),
    Target(_SERVING, "CBStreamer.put", _batch_put, "detokenize in transformers serve, continuous batching"),
)
