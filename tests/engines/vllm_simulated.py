"""A scheduler as vLLM's, made by hand: it tells a `Batch` what it does, and keeps a plain account of the truth.

Sequences wait in a line, compute their prompt in pieces of the step's budget, then one token a step. An evicted one
goes to the front of the line and computes everything again. With asynchronous scheduling the tokens of a step that was
under way when its sequence was evicted are delivered all the same, and only then it can come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tailspan.engines.vllm_batch import Batch


@dataclass(eq=False)
class FakeRequest:
    """One sequence; the names that `Batch` reads are vLLM's."""

    request_id: str
    key: int | None
    num_prompt_tokens: int
    max_tokens: int
    pooling_params: object | None = None
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_stale_output_tokens: int = 0
    in_flight: int = 0
    placeholders: int = 0
    was_running: bool = False
    is_prefilling: bool = False
    over: bool = False

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def wanted(self) -> int:
        """Tokens that it could compute now."""
        if self.num_output_tokens + self.placeholders >= self.max_tokens:
            return 0
        return self.num_tokens + self.placeholders - self.num_computed_tokens

    def is_finished(self) -> bool:
        """Whether nothing more will be computed."""
        return self.over


@dataclass
class Truth:
    """What really happened to a user request."""

    joins: list[tuple[int, int]] = field(default_factory=list)
    """Step and time at which the first of its sequences came in, for each time that none was in."""
    leaves: list[int] = field(default_factory=list)
    """Times at which the last one of those in the batch left it, while others waited."""
    tokens: list[tuple[int, int]] = field(default_factory=list)
    """Step and time at which it had a token, once a step."""
    output_tokens: int = 0
    chunks: int = 0
    finished_ns: int = 0
    aborted: bool = False


@dataclass
class PlannedStep:
    """What a step was planned with, and when its tokens were there."""

    begin_ns: int
    requests: int
    prefill_tokens: int
    tokens: int
    waiting: int
    preempted: int
    end_ns: int = 0


@dataclass
class FakeScheduler:
    """The scheduler, its batch and the account."""

    batch: Batch
    clock: Iterator[int]
    budget: int = 8
    max_running: int = 3
    waiting: list[FakeRequest] = field(default_factory=list)
    running: list[FakeRequest] = field(default_factory=list)
    under_way: list[tuple[int, Any, dict[str, bool]]] = field(default_factory=list)
    requests: dict[str, FakeRequest] = field(default_factory=dict)
    truths: dict[int, Truth] = field(default_factory=dict)
    steps: list[PlannedStep] = field(default_factory=list)
    evicted: int = 0
    sampled: Any = None
    """What the model gives back, for those who count drafts."""

    def add(self, request: FakeRequest) -> None:
        """Take a new sequence in."""
        self.requests[request.request_id] = request
        self.waiting.append(request)
        if request.key is not None:
            self.truths.setdefault(request.key, Truth())
        self.batch.added(request, request.key)

    def schedule(self) -> None:
        """Plan a step of what everybody in the batch needs, and of newcomers as far as the budget goes."""
        begin_ns = next(self.clock)
        tokens = self._continue()
        new, resumed = self._admit(tokens)
        number = len(self.steps) + 1
        output = SimpleNamespace(
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=0) for name in new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=resumed, num_computed_tokens=[0] * len(resumed), resumed_req_ids=set(resumed)
            ),
            scheduled_spec_decode_tokens={},
        )
        if tokens:
            self._account_joins(number, begin_ns, [*new, *resumed])
            prefill = sum(count for name, count in tokens.items() if self.requests[name].is_prefilling)
            self.steps.append(
                PlannedStep(begin_ns, len(tokens), prefill, sum(tokens.values()), len(self.waiting), self.evicted)
            )
            self.under_way.append((number, output, {name: self._compute(name, tokens[name]) for name in tokens}))
        self.evicted = 0
        self.batch.planned(self, output, begin_ns)

    def _continue(self) -> dict[str, int]:
        left, tokens = self.budget, {}
        for request in self.running:
            count = min(left, request.wanted)
            if count:
                left -= count
                tokens[request.request_id] = count
        return tokens

    def _admit(self, tokens: dict[str, int]) -> tuple[list[str], list[str]]:
        new: list[str] = []
        resumed: list[str] = []
        while self.waiting and len(self.running) < self.max_running:
            left = self.budget - sum(tokens.values())
            if not left or self.waiting[0].num_stale_output_tokens:
                break
            request = self.waiting.pop(0)
            self.running.append(request)
            tokens[request.request_id] = min(left, request.wanted)
            (resumed if request.was_running else new).append(request.request_id)
            request.was_running = request.is_prefilling = True
        return new, resumed

    def _compute(self, name: str, count: int) -> bool:
        """Return whether the step gives the sequence a token."""
        request = self.requests[name]
        if request.key is not None and request.is_prefilling and not request.num_output_tokens:
            self.truths[request.key].chunks += 1
        request.num_computed_tokens += count
        request.in_flight += count
        produces = request.num_computed_tokens >= request.num_tokens + request.placeholders
        request.placeholders += produces
        if produces:
            request.is_prefilling = False
        return produces

    def update(self) -> None:
        """The oldest step's tokens are there."""
        number, output, produces = self.under_way.pop(0)
        at_ns = next(self.clock)
        self.steps[number - 1].end_ns = at_ns
        self.batch.computed(output, self.sampled, at_ns)
        done = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.requests.get(name)
            if request is None:
                continue
            request.in_flight -= count
            is_stale = request.num_stale_output_tokens > 0
            request.num_stale_output_tokens -= count if is_stale else 0
            if not produces[name]:
                continue
            request.placeholders -= not is_stale
            if request.pooling_params is None:
                request.num_output_tokens += 1
                self._account_token(request, number, at_ns)
            if request.pooling_params is not None or request.num_output_tokens == request.max_tokens:
                done.append(request)
        for request in done:
            self._end(request, at_ns)
        part = SimpleNamespace(
            outputs=[SimpleNamespace(request_id=request.request_id, finish_reason="length") for request in done]
        )
        self.batch.updated({0: part}, at_ns)

    def evict(self) -> None:
        """Take the youngest out of the batch."""
        request = self.running.pop()
        request.num_computed_tokens = request.placeholders = 0
        request.num_stale_output_tokens = request.in_flight
        self.waiting.insert(0, request)
        self.evicted += 1
        at_ns = next(self.clock)
        self._account_leave(request, at_ns)
        self.batch.evicted(request, at_ns)

    def abort(self, request: FakeRequest) -> None:
        """Give a sequence up."""
        at_ns = next(self.clock)
        self._end(request, at_ns, aborted=True)
        self.batch.finished(request.request_id, at_ns, aborted=True)

    def get_request_counts(self) -> tuple[int, int]:
        """Running and waiting."""
        return len(self.running), len(self.waiting)

    def _end(self, request: FakeRequest, at_ns: int, *, aborted: bool = False) -> None:
        request.over = True
        del self.requests[request.request_id]
        was_running = request in self.running
        (self.running if was_running else self.waiting).remove(request)
        if request.key is None:
            return
        truth = self.truths[request.key]
        truth.output_tokens += request.num_output_tokens
        if not any(other.key == request.key for other in self.requests.values()):
            truth.finished_ns, truth.aborted = at_ns, aborted
        elif was_running:
            self._account_leave(request, at_ns)

    def _account_joins(self, number: int, begin_ns: int, came: list[str]) -> None:
        for key in {self.requests[name].key for name in came} - {None}:
            if not any(other.key == key and other.request_id not in came for other in self.running):
                self.truths[key].joins.append((number, begin_ns))

    def _account_leave(self, request: FakeRequest, at_ns: int) -> None:
        if request.key is not None and not any(other.key == request.key for other in self.running):
            self.truths[request.key].leaves.append(at_ns)

    def _account_token(self, request: FakeRequest, number: int, at_ns: int) -> None:
        if request.key is not None and (number, at_ns) not in self.truths[request.key].tokens:
            self.truths[request.key].tokens.append((number, at_ns))
