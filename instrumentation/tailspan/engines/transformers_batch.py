"""The batch of one continuous batching manager: who is in it, and what each planned step holds.

A member joins at its first step and leaves when a step is planned without it: evicted, or passed over by the scheduler.
Units: monotonic ns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container
from typing import Any, NamedTuple

from tailspan.asgi import exchange_of
from tailspan.engines.transformers_models import SOFTWARE
from tailspan.recorder import Engine, Request, now_ns


class Member:
    """A request in the engine. `owned`: begun by its prompt, not by a caller, so that the engine also ends it."""

    __slots__ = (
        "foreseen_step", "has_token", "is_prefilled", "is_queued", "joined", "last_step", "owned", "prefill_steps",
        "prompt_tokens", "queued_ns", "recomputes", "request", "state",
    )  # fmt: skip

    def __init__(self, request: Request, owned: bool, queued_ns: int, prompt_tokens: int = 0) -> None:
        """On the way into the queue; `Batch.added` records that."""
        self.queued_ns = queued_ns
        self.prompt_tokens = prompt_tokens
        self.is_queued = False
        self.request = request
        self.owned = owned
        self.joined = False
        self.is_prefilled = False
        self.has_token = False
        self.recomputes = False
        self.prefill_steps = 0
        self.foreseen_step = 0
        """The step of which the join says that it samples the first token."""
        self.last_step = 0
        self.state: Any = None


class _Plan(NamedTuple):
    number: int
    begin_ns: int
    requests: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    preempted: int
    kv_usage: float
    producers: list[tuple[Any, Member]]
    """States that get a token in this step."""


class _Updating(threading.local):
    batch: Batch | None = None


_updating = _Updating()


class Batch:
    """All members of one engine. Adding happens in callers' threads, everything else in the engine's own."""

    def __init__(self, model: str) -> None:
        """Start an engine for the model."""
        self.engine = Engine(SOFTWARE, model)
        self.scheduler_id = 0
        self._members: dict[str, Member] = {}
        self._running: dict[str, Member] = {}
        self._plans: deque[_Plan] = deque()
        self._current: _Plan | None = None
        self._completed = 0
        self._tokens_ns = 0
        self._ending: list[tuple[Member, str, str]] = []

    def holds(self, request: Request) -> bool:
        """Whether a prompt of this request is in the engine, so that another needs a request of its own."""
        member = self._members.get(request.engine_request_id)
        return member is not None and member.request is request

    def added(self, request_id: str, member: Member) -> None:
        """The engine has made its own record of a prompt, under its id."""
        self._members[request_id] = member
        member.request.engine_request_id = request_id
        self._queued(member, request_id if member.owned else "")

    def refused(self, member: Member) -> None:
        """The engine did not take the prompt."""
        self._members.pop(member.request.engine_request_id, None)
        if not member.is_queued:
            self._queued(member, "")
        if member.owned:
            member.request.end(now_ns(), "error", "request_refused")

    def planned(self, processor: Any, begin_ns: int) -> None:
        """A step was planned: note who takes part, and who does not any more."""
        ios = processor.inputs_and_outputs
        pairs = getattr(ios, "io_pairs", None)
        futures = (ios if pairs is None else pairs[ios.current_pair].host_io).requests_in_batch
        number = self.engine.next_step()
        prefill_tokens = decode_tokens = taking_part = 0
        producers = []
        members = self._members
        for future in futures:
            state = future.state
            member = members.get(state.request_id)
            if member is None:
                decode_tokens += future.query_length
                continue
            taking_part += 1
            if not member.joined:
                self._join(state.request_id, member, number, begin_ns, future.has_new_token)
            if member.is_prefilled:
                decode_tokens += future.query_length
            else:
                prefill_tokens += future.query_length
                if not member.has_token:
                    member.prefill_steps += 1
            member.last_step = number
            member.state = state
            if future.has_new_token:
                member.is_prefilled = True
                producers.append((state, member))
        preempted = 0
        if len(self._running) > taking_part:
            preempted = self._leave_all_but(number, begin_ns, processor.scheduler.active_requests)
        self._plans.append(
            _Plan(
                number, begin_ns, len(futures), prefill_tokens, decode_tokens,
                len(processor.scheduler.waiting_requests), preempted, 1.0 - processor.cache.compute_free_capacity(),
                producers,
            )
        )  # fmt: skip

    def planned_last(self) -> tuple[int, bool]:
        """Return the number of the step planned last, 0 without one, and whether it computes prompt tokens."""
        if not self._plans:
            return 0, False
        plan = self._plans[-1]
        return plan.number, bool(plan.prefill_tokens)

    def update_begins(self, at_ns: int) -> None:
        """The engine reads the tokens of its oldest planned step."""
        self._current = self._plans.popleft() if self._plans else None
        self._tokens_ns = at_ns
        _updating.batch = self

    @staticmethod
    def updating_at(at_ns: int) -> None:
        """The engine waited for the device: the tokens of the step that this thread updates are here only now."""
        if _updating.batch is not None:
            _updating.batch._tokens_ns = at_ns

    def update_ended(self) -> None:
        """Nothing had to be delivered, or it has been."""
        _updating.batch = None
        self.complete()
        self.delivered()

    def complete(self) -> None:
        """Record the step that is being updated, its first tokens and its finished requests."""
        plan, self._current = self._current, None
        if plan is None:
            return
        at_ns = self._tokens_ns
        engine = self.engine
        self._completed = plan.number
        self._record(plan, at_ns)
        finished = type(plan.producers[0][0].status).FINISHED if plan.producers else None
        for state, member in plan.producers:
            # Evicted meanwhile: the engine throws this token away.
            if not member.joined or member.state is not state:
                continue
            if (not member.has_token or member.recomputes) and member.foreseen_step != plan.number:
                engine.first_token(member.request.key, plan.number, at_ns)
            if not member.has_token and not state.streaming:
                member.request.has_output = True
            member.has_token = True
            member.recomputes = False
            if state.status is finished:
                self._finish(state.request_id, member, plan.number, at_ns, _output_tokens(state))
                self._ending.append((member, "ok", ""))

    def delivered(self) -> None:
        """The results are with the callers: end the requests that the engine owns."""
        while self._ending:
            member, outcome, error_type = self._ending.pop()
            if member.owned:
                member.request.end(now_ns(), outcome, error_type)

    def failed(self, request_id: str, error: BaseException) -> None:
        """The engine gives a request up and is about to tell its caller."""
        member = self._members.get(request_id)
        if member is None:
            return
        self._give_up(request_id, member, member.state)
        error_type = type(error).__name__
        self._ending.append((member, "error", error_type))
        exchange = exchange_of(member.request)
        if exchange is not None:
            exchange.engine_error(error_type, reported=True)

    def cancelled(self, state: Any) -> None:
        """The caller cancelled a request; the engine has removed it."""
        member = self._members.get(state.request_id)
        if member is not None:
            self._give_up(state.request_id, member, state)
            if member.owned:
                member.request.end(now_ns(), "cancelled")

    def abandon_plans(self, at_ns: int) -> None:
        """The engine stops with steps under way: they end here."""
        if self._current is not None:
            self._plans.appendleft(self._current)
            self._current = None
        while self._plans:
            self._record(self._plans.popleft(), at_ns, failed=True)

    def _record(self, plan: _Plan, end_ns: int, *, failed: bool = False) -> None:
        self.engine.step(
            plan.number, plan.begin_ns, end_ns,
            requests=plan.requests, prefill_tokens=plan.prefill_tokens, decode_tokens=plan.decode_tokens,
            waiting=plan.waiting, preempted=plan.preempted, kv_usage=plan.kv_usage, failed=failed,
        )  # fmt: skip

    def _queued(self, member: Member, response_id: str) -> None:
        member.is_queued = True
        self.engine.queued(member.request.key, member.queued_ns, member.prompt_tokens, response_id)

    def _join(self, request_id: str, member: Member, number: int, at_ns: int, samples_token: bool) -> None:
        samples_token = samples_token and (not member.has_token or member.recomputes)
        if samples_token:
            member.foreseen_step = number
        member.joined = True
        self._running[request_id] = member
        # Planning drains the queue: it may have begun before this request came.
        self.engine.join(member.request.key, number, max(at_ns, member.queued_ns), samples_token=samples_token)

    def _leave_all_but(self, number: int, at_ns: int, active: Container[str]) -> int:
        left = [(request_id, member) for request_id, member in self._running.items() if member.last_step != number]
        for request_id, member in left:
            del self._running[request_id]
            member.joined = False
            # An evicted member computes its prompt and output again, one that was passed over goes on.
            member.is_prefilled = member.is_prefilled and request_id in active
            member.recomputes = member.has_token and not member.is_prefilled
            self.engine.leave(member.request.key, member.last_step, at_ns)
        return len(left)

    def _finish(self, request_id: str, member: Member, number: int, at_ns: int, output_tokens: int) -> None:
        self._members.pop(request_id, None)
        self._running.pop(request_id, None)
        member.joined = False
        self.engine.finish(member.request.key, number, at_ns, output_tokens, max(1, member.prefill_steps))

    def _give_up(self, request_id: str, member: Member, state: Any) -> None:
        if member.last_step:
            # A step that failed under way gave no token.
            number = min(member.last_step, self._completed) if member.has_token else member.last_step
            self._finish(request_id, member, number, now_ns(), _output_tokens(state))
        else:
            self._members.pop(request_id, None)


def _output_tokens(state: Any) -> int:
    # After an eviction without a copy, earlier output is part of the new prompt.
    moved = len(state.initial_tokens) - state._true_initial_tokens if state._true_initial_tokens else 0
    return len(state.generated_tokens) + moved
