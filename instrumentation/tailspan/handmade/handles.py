"""The handle of one request: what `with tailspan.request() as handle` gives.

Units: monotonic ns inside; nothing takes a time from the caller.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from tailspan import attributes as attr
from tailspan.errors import UserError
from tailspan.handmade.failsafe import swallow
from tailspan.recorder import Request, now_ns
from tailspan.recorder.layout import Kind
from tailspan.recorder.process import is_started, ring

if TYPE_CHECKING:
    from tailspan.handmade.seats import Seat
    from tailspan.handmade.stages import StageName, StageScope

Value = str | bool | int | float


class RequestHandle:
    """A request under way. Methods may be called from any thread or task; without a recorder they do nothing.

    Truth value: whether the request is recorded.
    """

    __slots__ = (
        "__weakref__", "_caller", "_error_type", "_has_output", "_ours", "_output_tokens", "_request", "_seat",
        "_told_tokens",
    )  # fmt: skip

    def __init__(self, recorded: Request | None, caller: str = "", *, ours: bool = True) -> None:
        """Use `tailspan.request`; `ours` is False for a request that a hook began and will end."""
        self._request = recorded
        self._caller = caller
        self._ours = ours
        self._seat: Seat | None = None
        self._error_type = ""
        self._has_output = False
        self._output_tokens = 0
        self._told_tokens = False

    def __bool__(self) -> bool:
        return self._request is not None and self._request.recorded

    @property
    def traceparent(self) -> str:
        """W3C header value to send on, so that the next service continues this trace.

        While nothing is recorded it is the caller's own, "" without one.
        """
        return self._caller if self._request is None else self._request.traceparent

    def set(self, key: str, value: Value) -> None:
        """Set an attribute of the request span; text is cut at 240 bytes, integers have 64 bits.

        Keys that begin with `tailspan.` are the library's own. Never put prompt or answer text here.
        """
        request = self._open()
        if request is None:
            return
        try:
            if key.startswith("tailspan."):
                raise UserError(f"the attribute key {key!r} is reserved", "Use a key of your own, for example app.user")
            if isinstance(value, str):
                request.text(key, value)
            elif isinstance(value, (bool, int, float)):
                request.attribute(key, value)
            else:
                raise TypeError(f"attribute {key} is a {type(value).__name__}, not str, bool, int or float")
        except Exception as error:
            swallow(error)

    def tokens(self, *, input: int | None = None, output: int | None = None) -> None:  # noqa: A002 (the field's term)
        """Set the number of prompt (`input`) and generated (`output`) tokens; `output` replaces what `token` counts."""
        request = self._open()
        if request is None:
            return
        try:
            if input is not None:
                request.attribute(attr.GEN_AI_INPUT_TOKENS, input)
            if output is not None:
                request.attribute(attr.GEN_AI_OUTPUT_TOKENS, output)
                self._output_tokens = output
                self._told_tokens = True
        except Exception as error:
            swallow(error)

    def token(self, count: int = 1) -> None:
        """Note that the model sampled `count` tokens for this request, in the step under way if there is one.

        The first one ends `prefill`. It writes a record only the first time; later calls count.
        """
        request = self._request
        if request is None or request.ended:
            return
        try:
            is_first = not request.has_output
            self._count(count)
            if self._seat is not None:
                self._seat.token(count)
            elif is_first and request.recorded and is_started():
                ring().record(Kind.FIRST_TOKEN, 0, 0, request.key, 0, now_ns())
        except Exception as error:
            swallow(error)

    def first_output(self) -> None:
        """Note that the first piece of the answer goes to the client: the end of TTFT. Later calls do nothing.

        Under the HTTP hook the first body chunk after this call is what counts.
        """
        request = self._open()
        if self._has_output or request is None:
            return
        self._has_output = True
        try:
            if self._ours:
                request.first_chunk(now_ns())
            else:
                request.has_output = True
        except Exception as error:
            swallow(error)

    def output(self) -> None:
        """Note that a piece of the answer goes to the client; cheap enough for every piece, only the first is recorded.

        A streaming function under `@tailspan.request()` does this by itself at every `yield`.
        """
        if not self._has_output:
            self.first_output()

    def finish(self) -> None:
        """Note that the engine is done with the request: its last token is sampled, `decode` ends.

        Inside a step of the request it takes effect at the step's end. Without it, the last step in which the request
        took part is taken for its last once the request ends.
        """
        if self._seat is not None and is_started():
            try:
                self._seat.finish()
            except Exception as error:
                swallow(error)

    def fail(self, error_type: str) -> None:
        """End the request as an error although no exception leaves its block: an error class, of low cardinality."""
        if self._request is not None:
            self._error_type = error_type

    def stage(self, name: StageName) -> StageScope:
        """Measure a stage of this request where it is not the current one: in an engine's own thread, say."""
        from tailspan.handmade.stages import StageScope

        return StageScope(name, self)

    def _open(self) -> Request | None:
        """Return the recorded request while records about it make sense."""
        request = self._request
        return None if request is None or request.ended or not is_started() else request

    def _count(self, tokens: int) -> None:
        """Count sampled tokens; the next body chunk is output."""
        if not self._told_tokens:
            self._output_tokens += tokens
        if self._request is not None:
            self._request.has_output = True

    def _end(self, error: BaseException | None) -> None:
        """End the request; one that a hook began is only told what went wrong."""
        request = self._open()
        if request is None:
            return
        end_ns = now_ns()
        if self._seat is not None:
            self._seat.end(end_ns, sampled=error is None and not self._error_type)
        elif self._output_tokens and not self._told_tokens:
            request.attribute(attr.GEN_AI_OUTPUT_TOKENS, self._output_tokens)
        outcome, error_type = self._outcome(error)
        if self._ours:
            request.end(end_ns, outcome, error_type)
        elif outcome == "error":
            from tailspan.asgi import exchange_of

            exchange = exchange_of(request)
            if exchange is not None:
                exchange.engine_error(error_type, reported=error is None)

    def _outcome(self, error: BaseException | None) -> tuple[str, str]:
        if isinstance(error, asyncio.CancelledError) or (error is not None and not isinstance(error, Exception)):
            return "cancelled", ""
        if error is not None or self._error_type:
            return "error", self._error_type or type(error).__name__
        return "ok", ""


NOTHING = RequestHandle(None)
"""What there is where no request is recorded."""

_handles: WeakValueDictionary[int, RequestHandle] = WeakValueDictionary()


def new_handle(recorded: Request, *, ours: bool) -> RequestHandle:
    """Return the handle of a recorded request and remember it for as long as somebody uses it."""
    handle = RequestHandle(recorded, ours=ours)
    _handles[recorded.key] = handle
    return handle


def find_handle(key: int) -> RequestHandle | None:
    """Return the handle of a request that is in use."""
    return _handles.get(key)


def engine_has(key: int) -> bool:
    """Whether the request has a place in an `Engine`."""
    handle = _handles.get(key)
    return handle is not None and handle._seat is not None
