"""What the hooks of a served request write, through the recorder's own functions: the load of the benchmarks.

One request is what `tailspan.asgi` and the transformers hooks record for one streamed chat completion. Steps are
written by the engine, one for each batch, whatever the number of requests in it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tailspan import attributes as attr
from tailspan.recorder import AttributeSet, Engine, Request, begin_request, now_ns

RECORDS_OF_A_REQUEST = 8
"""Without registered strings, which are written once; a test counts them."""
_ROUTE = AttributeSet(
    {
        attr.HTTP_METHOD: "POST",
        attr.HTTP_ROUTE: "/v1/chat/completions",
        attr.URL_PATH: "/v1/chat/completions",
        attr.GEN_AI_OPERATION: "chat",
    }
)
_RESPONSE_ID = "0b6cf2a1-7d7e-4d3c-9f5b-3c1d2e4f5a6b"
"""As `transformers serve` makes them."""
_ASKED = AttributeSet({attr.GEN_AI_MODEL: "SmolLM2-135M-Instruct", attr.GEN_AI_STREAM: True})
SPANS_OF_A_REQUEST = 9
"""The request and its stages receive, tokenize, dispatch, queue, prefill, decode, detokenize, respond."""


@dataclass(slots=True)
class Traffic:
    """One engine under load."""

    engine: Engine = field(default_factory=lambda: Engine("transformers", "SmolLM2-135M-Instruct"))

    def arrive(self) -> Request:
        """Record a request until it waits in the engine's queue."""
        begin_ns = now_ns()
        request = begin_request("POST /v1/chat/completions", begin_ns, None, _ROUTE)
        request.stage("receive", begin_ns, now_ns())
        request.describe(_ASKED, _RESPONSE_ID)
        tokenize_ns = now_ns()
        request.stage("tokenize", tokenize_ns, now_ns())
        self.engine.queued(request.key, now_ns(), 64)
        return request

    def finish(self, request: Request, step: int, at_ns: int, tokens: int) -> None:
        """Record the last token, the last text and the end."""
        self.engine.finish(request.key, step, at_ns, tokens)
        request.text_ready(now_ns(), 100_000)
        request.end(now_ns(), http_status=200)

    def whole(self, tokens: int = 2) -> None:
        """Record a request from begin to end with two steps of its own."""
        request = self.arrive()
        first, last = self.engine.next_step(), self.engine.next_step()
        begin_ns = now_ns()
        self.engine.join(request.key, first, begin_ns, samples_token=True)
        self.step(first, begin_ns, 1)
        request.first_chunk(now_ns())
        self.step(last, begin_ns, 1)
        self.finish(request, last, now_ns(), tokens)

    def step(self, number: int, begin_ns: int, requests: int) -> None:
        """Record a step that ends now."""
        self.engine.step(
            number,
            begin_ns,
            now_ns(),
            requests=requests,
            prefill_tokens=64,
            decode_tokens=requests,
            waiting=3,
            kv_usage=0.5,
        )


def pace(begin_s: float, due_s: float) -> None:
    """Sleep until `due_s` seconds after `begin_s`, if that is still to come."""
    left_s = begin_s + due_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)
