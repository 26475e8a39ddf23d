"""`tailspan.request`: one user request from its begin to its end, by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextvars import Token
from types import TracebackType
from typing import ParamSpec, TypeVar

from opentelemetry import trace

from tailspan import attributes as attr
from tailspan.errors import UserError
from tailspan.handmade.calls import AlsoAsync, wrap
from tailspan.handmade.failsafe import swallow
from tailspan.handmade.handles import NOTHING, RequestHandle, Value, find_handle, new_handle
from tailspan.ids import format_traceparent, parse_traceparent
from tailspan.recorder import AttributeSet, Request, begin_request, now_ns
from tailspan.recorder import current_request as current
from tailspan.recorder.process import is_started

P = ParamSpec("P")
R = TypeVar("R")
_TEXT_COMPLETION = AttributeSet({attr.GEN_AI_OPERATION: "text_completion"})


class RequestScope(AlsoAsync[RequestHandle]):
    """One request; use `tailspan.request`. A new one for each `with`; as a decorator it renews itself."""

    __slots__ = ("_attributes", "_ends", "_handle", "_model", "_name", "_request_id", "_token", "_traceparent")

    def __init__(
        self, name: str, traceparent: str | None, model: str | None, request_id: str | None,
        attributes: Mapping[str, Value] | None,
    ) -> None:  # fmt: skip
        if not isinstance(name, str):
            raise UserError("tailspan.request was used as a decorator without brackets", "Write @tailspan.request()")
        self._name = name
        self._traceparent = traceparent
        self._model = model
        self._request_id = request_id
        self._attributes = attributes
        self._handle = NOTHING
        self._ends = False
        self._token: Token[Request | None] | None = None

    def __enter__(self) -> RequestHandle:
        try:
            self._handle = self._begin()
        except Exception as error:
            swallow(error)
        self.resume()
        return self._handle

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.pause()
        if self._ends:
            self._ends = False
            try:
                self._handle._end(error)
            except Exception as ours:
                swallow(ours)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of the function a request; what a generator yields is the answer's output."""
        return wrap(function, self.again)

    def again(self) -> RequestScope:
        """Return a request with the same settings."""
        return RequestScope(self._name, self._traceparent, self._model, self._request_id, self._attributes)

    def resume(self) -> None:
        """Code of the request runs: it is the current one."""
        if self._handle._request is not None and self._token is None:
            self._token = current.set(self._handle._request)

    def pause(self) -> None:
        """Other code runs."""
        token, self._token = self._token, None
        if token is not None:
            # ValueError: a generator that is closed from another task, which never had the request.
            with contextlib.suppress(ValueError):
                current.reset(token)

    def item(self) -> None:
        """A generator yields a piece of the answer."""
        self._handle.output()

    def _begin(self) -> RequestHandle:
        if not is_started():
            return RequestHandle(None, self._traceparent) if self._traceparent else NOTHING
        handle, self._ends = self._open(current.get())
        if self._model is not None and handle._request is not None:
            handle._request.attribute(attr.GEN_AI_MODEL, self._model)
        if self._request_id is not None:
            handle.set(attr.GEN_AI_RESPONSE_ID, self._request_id)
        for key, value in (self._attributes or {}).items():
            handle.set(key, value)
        return handle

    def _open(self, outer: Request | None) -> tuple[RequestHandle, bool]:
        if outer is not None and not outer.ended and _continues(outer, self._traceparent):
            known = find_handle(outer.key)
            return (known, False) if known is not None else (new_handle(outer, ours=False), True)
        begin_ns = now_ns()
        attributes = None if attr.GEN_AI_OPERATION in (self._attributes or {}) else _TEXT_COMPLETION
        request = begin_request(self._name, begin_ns, self._traceparent or _active_traceparent(), attributes)
        return new_handle(request, ours=True), True


def request(
    name: str = "generate", *, traceparent: str | None = None, model: str | None = None, request_id: str | None = None,
    attributes: Mapping[str, Value] | None = None,
) -> RequestScope:  # fmt: skip
    """Measure one user request: a context manager and a decorator, for sync and async functions and generators.

    name: span name, of low cardinality. traceparent: the caller's W3C header; default is the active OpenTelemetry span.
    model: `gen_ai.request.model`. request_id: `gen_ai.response.id`. attributes: more of the request span, see
    `RequestHandle.set`; `gen_ai.operation.name` is `text_completion` unless it is given here.

    The block gets a `RequestHandle`. An exception that leaves it ends the request as `error` with its class,
    cancellation (`CancelledError`, `GeneratorExit`, `KeyboardInterrupt`) as `cancelled`; all pass through untouched.
    Inside a request that is already open (by the HTTP hook or an outer `request`) it is that one, unless `traceparent`
    names another trace.

    Raises:
        UserError: used as a decorator without brackets.
    """
    return RequestScope(name, traceparent, model, request_id, attributes)


def current_request() -> RequestHandle:
    """Return the request that this code works for; outside any, a handle that does nothing."""
    try:
        recorded = current.get()
        if recorded is None or recorded.ended:
            return NOTHING
        return find_handle(recorded.key) or new_handle(recorded, ours=False)
    except Exception as error:
        swallow(error)
        return NOTHING


def _continues(outer: Request, traceparent: str | None) -> bool:
    parsed = parse_traceparent(traceparent) if traceparent else None
    return parsed is None or parsed[0] == outer.trace_id


def _active_traceparent() -> str | None:
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return format_traceparent(context.trace_id, context.span_id, int(context.trace_flags))
