"""`tailspan.stage`: measure one stage of a request by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Literal, ParamSpec, TypeVar

from tailspan import attributes as attr
from tailspan.errors import UserError
from tailspan.handmade.calls import AlsoAsync, wrap
from tailspan.handmade.failsafe import swallow
from tailspan.handmade.handles import RequestHandle, engine_has
from tailspan.recorder import Request, current_request, now_ns
from tailspan.recorder.process import is_started

P = ParamSpec("P")
R = TypeVar("R")
StageName = Literal[
    "tls", "receive", "tokenize", "dispatch", "queue", "prefill", "decode", "preempted", "detokenize", "respond"
]
"""One of `tailspan.attributes.STAGES`."""

_STAGES = frozenset(attr.STAGES)
_WAITING = frozenset(("queue", "preempted"))
"""Stages in which nobody works for the request."""
_BRIEF = frozenset(("detokenize", "respond"))
"""Stages that a streaming loop measures for every piece: no record says that they begin."""


class StageScope(AlsoAsync[None]):
    """One measurement; use `tailspan.stage`. A new one for each `with`; as a decorator it renews itself."""

    __slots__ = ("_begin_ns", "_handle", "_name", "_request", "_resumed_ns", "_worked_ns")

    def __init__(self, name: StageName, request: RequestHandle | None = None) -> None:
        if name not in _STAGES:
            raise UserError(f"unknown stage {name!r}", f"Use one of: {', '.join(attr.STAGES)}")
        self._name = name
        self._handle = request
        self._request: Request | None = None
        self._begin_ns = 0
        self._resumed_ns = 0
        self._worked_ns = -1
        """Time in a generator's own code; -1: all of it."""

    def __enter__(self) -> None:
        try:
            self._request = current_request.get() if self._handle is None else self._handle._request
            if self._request is not None:
                self._begin_ns = now_ns()
                if self._name not in _BRIEF and is_started():
                    # If the worker dies inside, this is what is known of the stage.
                    self._request.stage(self._name, self._begin_ns, 0, 0)
        except Exception as error:
            swallow(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        request = self._request
        if request is None:
            return
        self._request = None
        try:
            end_ns = now_ns()
            if request.ended or not is_started():
                return
            if self._name == "detokenize" and engine_has(request.key):
                # Text of a request in a batch is ready many times: one record when the request ends.
                request.text_ready(end_ns, end_ns - self._begin_ns if self._worked_ns < 0 else self._worked_ns)
                return
            busy_ns = 0 if self._name in _WAITING else self._worked_ns
            request.stage(self._name, self._begin_ns, end_ns, busy_ns)
        except Exception as ours:
            swallow(ours)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Measure every call of the function; of a generator all until it is exhausted."""
        return wrap(function, self.again)

    def again(self) -> StageScope:
        """Return a new measurement of the same stage."""
        return StageScope(self._name, self._handle)

    def resume(self) -> None:
        """The generator's own code runs."""
        self._worked_ns = max(0, self._worked_ns)
        self._resumed_ns = now_ns()

    def pause(self) -> None:
        """The generator's consumer runs."""
        self._worked_ns += now_ns() - self._resumed_ns

    def item(self) -> None:
        """A piece that a generator yields means nothing to a stage."""


def stage(name: StageName, *, request: RequestHandle | None = None) -> StageScope:
    """Measure a stage of a request: a context manager and a decorator, for sync and async functions and generators.

    name: one of `tls`, `receive`, `tokenize`, `dispatch`, `queue`, `prefill`, `decode`, `preempted`, `detokenize`,
    `respond`.
    request: the request's handle; default is the current one. Outside any request nothing is measured.

    Stages never overlap in the report: a nested one is cut out of the outer one, parts of one name are joined, and the
    rest of the request is shown as `unattributed`. For a request in an `Engine`, `dispatch`, `prefill`, `decode` and
    `preempted` come from its steps.

    Raises:
        UserError: an unknown stage.
    """
    return StageScope(name, request)
