"""The HTTP side of a worker: one root request for every inference call that reaches an ASGI application.

In: `fastapi.FastAPI.__call__` and `starlette.applications.Starlette.__call__`, so that an application that already
serves is traced too and removing the hook stops it at once. A request is begun for every POST whose path ends with one
of `INFERENCE_ROUTES`; health, model list, docs and all other routes are left alone.
Out: BEGIN with the caller's W3C context, the `receive` stage, END with first chunk, outcome and status.
Units: monotonic ns. Under uvicorn a request begins when its bytes reached the host (`asgi_arrival`), however busy the
event loop was; elsewhere it begins with the call of the application.

Outcomes: `client_disconnect` when the peer left before the last chunk; `error` for an exception, a status >= 500 or a
stream that carried an engine error under status 200; else `ok`, with the status as error type from 400 to 499.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from tailspan import asgi_timing
from tailspan import attributes as attr
from tailspan.asgi_arrival import arrival_ns
from tailspan.guard import Guard
from tailspan.patching import Patcher, Target
from tailspan.recorder import AttributeSet, Request, begin_request, current_request, now_ns
from tailspan.recorder.process import is_started

Message = MutableMapping[str, Any]
App = Callable[..., Awaitable[Any]]

INFERENCE_ROUTES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/pooling": "embeddings",
    "/classify": "embeddings",
    "/score": "embeddings",
    "/rerank": "embeddings",
    "/v1/systemone": "generate_content",
    "/v1/audio/transcriptions": "generate_content",
    "/v1/audio/translations": "generate_content",
    "/generate": "text_completion",
    "/generate_stream": "text_completion",
}
"""Route -> `gen_ai.operation.name`. A prefix in front of a route (a mount, a proxy path) does not matter."""

_SHARED = {
    route: AttributeSet(
        {
            attr.HTTP_METHOD: "POST",
            attr.HTTP_ROUTE: route,
            attr.URL_PATH: route,
            attr.GEN_AI_OPERATION: operation,
        }
    )
    for route, operation in INFERENCE_ROUTES.items()
}
TRACESTATE_MEMBER = b"tailspan=1"
_STREAM_ERRORS = (b'data: {"error":', b'data: {"object":"error"', b'data: {"object": "error"')
"""How servers tell an error inside a stream, whose status was sent long ago."""
_BEGIN = "tailspan_begin_ns"
_SCOPE_KEY = "tailspan.request"
_GUARD = Guard("asgi")
_exchanges: dict[int, Exchange] = {}


class Exchange:
    """One HTTP request and its response while it is in flight; wraps `receive` and `send` of the application."""

    __slots__ = (
        "_asked_for_times",
        "_body_read_ns",
        "_called_ns",
        "_complete_ns",
        "_cycle",
        "_disconnected",
        "_engine_error",
        "_engine_failed",
        "_receive",
        "_received",
        "_route",
        "_scope",
        "_send",
        "_status",
        "model_known",
        "request",
    )  # fmt: skip

    def __init__(self, request: Request, route: str, scope: Message, receive: App, send: App) -> None:
        """Start with nothing received and nothing sent."""
        self.request = request
        self.model_known = False
        self._route = route
        self._asked_for_times = _header(scope["headers"], asgi_timing.ASKED) == "1"
        self._scope = scope
        self._receive = receive
        self._send = send
        self._cycle = getattr(receive, "__self__", None)
        self._called_ns = now_ns()
        self._received = False
        self._body_read_ns = 0
        self._status = 0
        self._complete_ns = 0
        self._disconnected = False
        self._engine_error = ""
        self._engine_failed = False

    async def run(self, app: App) -> None:
        """Run the application once; its exception passes through untouched."""
        _exchanges[self.request.key] = self
        token = current_request.set(self.request)
        error: BaseException | None = None
        try:
            await app(self._scope, self.receive, self.send)
        except BaseException as caught:
            error = caught
            raise
        finally:
            with _GUARD:
                current_request.reset(token)
                self._close(error)
            del error

    async def receive(self) -> Message:
        """ASGI receive: note when the body is complete and when the client left."""
        message: Message = await self._receive()
        with _GUARD:
            if message["type"] == "http.disconnect":
                self._disconnected = self._disconnected or not self._complete_ns
            elif not message.get("more_body", False):
                self._body_read_ns = now_ns()
        return message

    async def send(self, message: Message) -> None:
        """ASGI send: note the status, the first chunk with output and the last chunk."""
        has_output = self.request.has_output
        leaves_ns = 0
        with _GUARD:
            timings = self.request.timings
            if timings is not None:
                message = asgi_timing.tell(message, timings, self._route, asked=self._asked_for_times)
            # uvicorn drops what is sent after a disconnect without a word; its request cycle knows.
            self._disconnected = self._disconnected or bool(getattr(self._cycle, "disconnected", False))
            if not getattr(getattr(self._cycle, "flow", None), "write_paused", True):
                # The write is a system call that may give another thread its turn: the bytes leave before it returns.
                leaves_ns = now_ns()
        await self._send(message)
        with _GUARD:
            self._sent(message, has_output, leaves_ns or now_ns())

    def received(self, at_ns: int) -> None:
        """The request is read and parsed: its endpoint was entered."""
        if not self._received:
            self._received = True
            # Bytes that waited for the event loop are part of the stage, but nobody worked on them.
            self.request.stage("receive", self.request.begin_ns, at_ns, busy_ns=max(0, at_ns - self._called_ns))

    def engine_error(self, error_type: str, *, reported: bool) -> None:
        """The engine failed; `reported` when the answer tells the client so whatever its status."""
        self._engine_error = self._engine_error or error_type
        self._engine_failed = self._engine_failed or reported

    def _sent(self, message: Message, has_output: bool, at_ns: int) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._status = int(message["status"])
        elif kind == "http.response.body":
            body = message.get("body")
            if has_output and body and self._status < 400 and not self._disconnected:
                self.request.first_chunk(at_ns)
            if body and body.startswith(_STREAM_ERRORS):
                self._engine_failed = True
            if not message.get("more_body", False):
                self._complete_ns = at_ns
                # An error answer waits for the exception that explains it.
                if self._status < 500:
                    self._end(None)

    def _close(self, error: BaseException | None) -> None:
        _exchanges.pop(self.request.key, None)
        if not self.request.ended:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        end_ns = self._complete_ns or now_ns()
        self.received(self._body_read_ns or end_ns)
        outcome, error_type = self._outcome(error)
        self.request.end(end_ns, outcome, error_type, self._status)

    def _outcome(self, error: BaseException | None) -> tuple[str, str]:
        if self._disconnected:
            return "client_disconnect", ""
        if isinstance(error, asyncio.CancelledError):
            return "cancelled", ""
        if error is not None:
            return "error", self._engine_error or type(error).__name__
        if self._engine_failed or self._status >= 500:
            return "error", self._engine_error or str(self._status)
        if self._status >= 400:
            return "ok", str(self._status)
        if not self._complete_ns:
            return "error", "incomplete_response"
        return "ok", ""


def exchange_of(request: Request) -> Exchange | None:
    """Return the HTTP exchange in flight for a request, None for offline calls and ended requests."""
    return _exchanges.get(request.key)


def traceparent(headers: list[tuple[bytes, bytes]]) -> str | None:
    """Return the W3C `traceparent` of ASGI headers, whatever its case."""
    return _header(headers, b"traceparent")


def _header(headers: list[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), None)


def _handed_on(headers: Iterable[tuple[bytes, bytes]], request: Request) -> list[tuple[bytes, bytes]]:
    """Return the headers under which an engine's own tracing continues ours.

    Its spans become children of the request's and carry our member of `tracestate`, by which the collector knows that
    the request was counted already. Source: W3C Trace Context, 3.3.1.3 (the newest member comes first).
    """
    states = [value for name, value in headers if name.lower() == b"tracestate" and value.strip()]
    others = [item for item in headers if item[0].lower() not in (b"traceparent", b"tracestate")]
    state = b",".join([TRACESTATE_MEMBER, *states])
    return [*others, (b"traceparent", request.traceparent.encode()), (b"tracestate", state)]


def route_of(scope: Message) -> str | None:
    """Return the inference route of an ASGI scope, None when tailspan has no interest in it."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    path = scope["path"]
    if path in INFERENCE_ROUTES:
        return str(path)
    return next((route for route in INFERENCE_ROUTES if path.endswith(route)), None)


def _call(wrapped: App, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
    exchange = None
    with _GUARD:
        exchange = _begin(*args, **kwargs)
    return wrapped(*args, **kwargs) if exchange is None else exchange.run(wrapped)


def _begin(scope: Message, receive: App, send: App) -> Exchange | None:
    route = route_of(scope)
    if route is None or _SCOPE_KEY in scope or not is_started():
        return None
    begin_ns = getattr(getattr(receive, "__self__", None), _BEGIN, 0) or now_ns()
    request = begin_request(f"POST {route}", begin_ns, traceparent(scope["headers"]), _SHARED[route])
    scope[_SCOPE_KEY] = request.traceparent
    scope["headers"] = _handed_on(scope["headers"], request)
    if scope["path"] != route:
        request.text(attr.URL_PATH, scope["path"])
    if _header(scope["headers"], b"x-tailspan-debug") == "1":
        request.attribute(attr.DEBUG, True)
    return Exchange(request, route, scope, receive, send)


def _cycle(wrapped: Callable[..., None], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wrapped(*args, **kwargs)
    with _GUARD:
        setattr(instance, _BEGIN, arrival_ns(getattr(instance, "transport", None)))


_HEADERS = "begin of a request before the event loop reaches the application"
TARGETS = (
    Target("fastapi.applications", "FastAPI.__call__", _call, "request spans of FastAPI applications"),
    Target("starlette.applications", "Starlette.__call__", _call, "request spans of Starlette applications"),
    Target("uvicorn.protocols.http.h11_impl", "RequestResponseCycle.__init__", _cycle, _HEADERS),
    Target("uvicorn.protocols.http.httptools_impl", "RequestResponseCycle.__init__", _cycle, _HEADERS),
    Target("uvicorn.protocols.http.zttp_impl", "RequestResponseCycle.__init__", _cycle, _HEADERS),
)


def patcher() -> Patcher:
    """Return the patcher of all targets, not yet applied."""
    return Patcher("asgi", TARGETS)
