"""The engine's times of a request, told to its caller: TAILSPAN_SERVER_TIMING=1, off by default.

An answer that is sent whole gets the header `Server-Timing: queue;dur=12.3, prefill;dur=45.6, decode;dur=789.0`.
A stream's headers have left by then: a client that sent `x-tailspan-timing: 1` gets one more event before `[DONE]`,
without choices like the usage block, with the member `tailspan`: `{"queue_ms": 12.3, "prefill_ms": ...}`.
Units: ms with one tenth of a microsecond at most. Source: W3C Server Timing, 2022.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from itertools import pairwise
from typing import Any

Message = MutableMapping[str, Any]

ASKED = b"x-tailspan-timing"
"""Request header by which the client of a stream asks for the block."""
_DONE = b"data: [DONE]"
_OBJECTS = {"/v1/completions": "text_completion"}


class Timings:
    """Boundaries of a request in the engine, monotonic ns; 0 while they are not known."""

    __slots__ = ("first_token_ns", "joined_ns", "last_token_ns", "queued_ns")

    def __init__(self, queued_ns: int, joined_ns: int) -> None:
        """The engine has begun with the request."""
        self.queued_ns, self.joined_ns = queued_ns, joined_ns
        self.first_token_ns = self.last_token_ns = 0

    def token(self, at_ns: int) -> None:
        """A token's text is ready."""
        self.first_token_ns = self.first_token_ns or at_ns
        self.last_token_ns = at_ns

    def milliseconds(self) -> dict[str, float]:
        """Return the length of each stage."""
        bounds = (self.queued_ns, self.joined_ns, self.first_token_ns, self.last_token_ns)
        lengths = [(end - begin) / 1e6 for begin, end in pairwise(bounds)]
        return {
            name: round(max(0.0, length), 4)
            for name, length in zip(("queue", "prefill", "decode"), lengths, strict=True)
        }


def tell(message: Message, timings: Timings, route: str, *, asked: bool) -> Message:
    """Return an ASGI message of the response with the times in it, where it is the one that can hold them."""
    if message["type"] == "http.response.start":
        value = ", ".join(f"{name};dur={length:g}" for name, length in timings.milliseconds().items())
        return {**message, "headers": [*message.get("headers", ()), (b"server-timing", value.encode())]}
    body = message.get("body", b"")
    position = body.rfind(_DONE) if asked else -1
    if position < 0:
        return message
    return {**message, "body": body[:position] + _event(timings, route) + body[position:]}


def _event(timings: Timings, route: str) -> bytes:
    times = {f"{name}_ms": length for name, length in timings.milliseconds().items()}
    block = {"object": _OBJECTS.get(route, "chat.completion.chunk"), "choices": [], "tailspan": times}
    return f"data: {json.dumps(block, separators=(',', ':'))}\n\n".encode()
