"""`tailspan.step`: one iteration of an engine over its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import ParamSpec, TypeVar

from tailspan.handmade.calls import AlsoAsync, wrap
from tailspan.handmade.engine import Engine
from tailspan.handmade.failsafe import swallow
from tailspan.handmade.handles import RequestHandle
from tailspan.handmade.seats import Seat
from tailspan.recorder import now_ns
from tailspan.recorder.process import is_started

P = ParamSpec("P")
R = TypeVar("R")
Batch = Iterable[RequestHandle] | Callable[[], Iterable[RequestHandle]]


class StepScope(AlsoAsync["StepScope"]):
    """One iteration of an engine; use `tailspan.step`. A new one for each `with`; as a decorator it renews itself.

    The numbers may be set until the step ends. Times: the step begins when the block is entered and ends, with its
    tokens on the host, when the block is left.
    """

    __slots__ = (
        "_requests", "batch", "begin_ns", "decode_tokens", "engine", "finishing", "first_tokens", "joined", "kv_usage",
        "noted_tokens", "number", "preempted", "prefill_tokens", "waiting",
    )  # fmt: skip

    def __init__(
        self, engine: Engine, requests: Batch, prefill_tokens: int, decode_tokens: int | None, waiting: int,
        preempted: int, kv_usage: float | None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.prefill_tokens = prefill_tokens
        """Prompt tokens computed."""
        self.decode_tokens = decode_tokens
        """Tokens decoded; None: as many as were noted for requests past their first token."""
        self.waiting = waiting
        """Requests that wait for the scheduler."""
        self.preempted = preempted
        """Requests evicted when the step was planned."""
        self.kv_usage = kv_usage
        """Share of the KV cache in use, 0 to 1; None: unknown."""
        self.number = 0
        """Number of the step in its engine, from 1; 0 while nothing is recorded."""
        self.begin_ns = 0
        self.batch: tuple[RequestHandle, ...] = ()
        self.noted_tokens = 0
        self.joined: list[Seat] = []
        self.first_tokens: list[Seat] = []
        self.finishing: list[Seat] = []
        self._requests = requests

    def tokens(self, request: RequestHandle, count: int = 1) -> None:
        """Note that this step samples `count` tokens for the request; where steps overlap, else `token()`."""
        try:
            seat = request._seat
            if seat is not None and seat.engine is self.engine:
                request._count(count)
                self.engine.tells_tokens = True
                self.note(seat, count)
        except Exception as error:
            swallow(error)

    def finish(self, request: RequestHandle) -> None:
        """Note that this step samples the request's last token; for steps that overlap, else `request.finish()`."""
        if request._seat is not None and request._seat.engine is self.engine:
            self.finishing.append(request._seat)

    def note(self, seat: Seat, count: int) -> None:
        """Count the tokens of a request; the first since it joined becomes a record when the step ends."""
        if seat.awaits_token:
            self.first_tokens.append(seat)
        else:
            self.noted_tokens += count

    def __enter__(self) -> StepScope:
        if is_started():
            try:
                requests = self._requests() if callable(self._requests) else self._requests
                self.begin_ns = now_ns()
                self.batch = tuple(requests)
                self.number = self.engine.begin_step(self, self.batch, self.begin_ns)
                self.engine.device_begins(self)
            except Exception as error:
                swallow(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.number:
            try:
                records = is_started()
                self.engine.device_ends(self, failed=kind is not None or not records)
                if records:
                    self.engine.end_step(self, now_ns())
            except Exception as ours:
                swallow(ours)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of the function a step; give the batch as a function: `requests=lambda: running`."""
        return wrap(function, self.again)

    def again(self) -> StepScope:
        """Return a step with the same settings."""
        return StepScope(
            self.engine, self._requests, self.prefill_tokens, self.decode_tokens, self.waiting, self.preempted,
            self.kv_usage,
        )  # fmt: skip

    def resume(self) -> None:
        """A step has no context of its own."""

    def pause(self) -> None:
        """A step has no context of its own."""

    def item(self) -> None:
        """A piece that a generator yields means nothing to a step."""


def step(
    engine: Engine, requests: Batch = (), *, prefill_tokens: int = 0, decode_tokens: int | None = None,
    waiting: int = 0, preempted: int = 0, kv_usage: float | None = None,
) -> StepScope:  # fmt: skip
    """Measure one iteration of `engine` over a batch: a context manager and a decorator, sync and async.

    requests: the handles of `tailspan.request` that take part, or a function that returns them when the step begins.
    prefill_tokens, decode_tokens: tokens computed; decode_tokens None counts the `token()` calls past the first.
    waiting, preempted: requests in the queue, and evicted for this step. kv_usage: share of the KV cache used, 0 to 1.

    Joins, evictions and finishes follow from who is in `requests` and who was in the previous step. Say
    `handle.token()` for each request that samples a token, and `handle.finish()` with its last one; a worker that never
    says `token()` is taken to sample one for each request in every step.
    """
    return StepScope(engine, requests, prefill_tokens, decode_tokens, waiting, preempted, kv_usage)
