"""The batch of one vLLM scheduler: who is in it, and what each planned step holds.

In: what `Scheduler.schedule()` planned and `update_from_output()` returned, as `vllm_scheduler` hands it on.
Out: the records of requests that the API process marked, and of every step. Units: monotonic ns.

vLLM has one `Request` for each sequence: n > 1 and several prompts in one call make several of one user request. The
user request is in the batch as long as one of its sequences is, and finished with the last of them.
A step is known by its `SchedulerOutput`: with asynchronous scheduling the next one is planned before this one is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from tailspan import attributes as attr
from tailspan.engines import vllm_marks
from tailspan.recorder import Engine
from tailspan.recorder.process import tells_callers

MAX_PLANS = 64
"""Planned steps under way: more than any pipeline holds, so the oldest belong to steps that failed."""


class Member:
    """A user request in this engine."""

    __slots__ = ("accepted", "drafted", "has_token", "key", "open", "output_tokens", "prefill_steps", "running")

    def __init__(self, key: int) -> None:
        """Nothing of it is in the batch yet."""
        self.key = key
        self.open = 0
        """Sequences that the engine has."""
        self.running = 0
        """Those in the batch."""
        self.has_token = False
        self.output_tokens = 0
        self.prefill_steps = 0
        self.drafted = self.accepted = 0


class Sequence:
    """One vLLM `Request`; `member` is None for those that nobody asked to trace."""

    __slots__ = ("foreseen_step", "join_step", "member", "output_tokens", "prefill_steps", "request")

    def __init__(self, request: Any, member: Member | None) -> None:
        """Waiting."""
        self.request = request
        self.member = member
        self.join_step = 0
        """The step with which it last came into the batch; 0 outside of it."""
        self.foreseen_step = 0
        """The step of which the join says that it samples a token."""
        self.prefill_steps = 0
        self.output_tokens = 0


class _Plan(NamedTuple):
    output: Any
    """Kept so that its identity is not given to another."""
    number: int
    begin_ns: int
    requests: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    preempted: int
    kv_usage: float
    producers: list[tuple[Sequence, int]]
    """Sequences whose prompt is complete with this step, each with its `join_step`."""


class Batch:
    """All sequences of one scheduler; everything happens in the engine's own thread."""

    def __init__(self, engine: Engine) -> None:
        """Start empty."""
        self.engine = engine
        self._sequences: dict[str, Sequence] = {}
        self._members: dict[int, Member] = {}
        self._prefilling: dict[str, Sequence] = {}
        self._plans: dict[int, _Plan] = {}
        self._telling: deque[Any] = deque()
        """Requests whose first output carries times back."""
        self._planned = self._completed = self._preempted = 0

    def added(self, request: Any, key: int | None) -> None:
        """The scheduler has a new sequence, of the user request with this key."""
        member = None
        if key is not None:
            member = self._members.get(key)
            if member is None:
                member = self._members[key] = Member(key)
            member.open += 1
        self._sequences[request.request_id] = Sequence(request, member)

    def planned(self, scheduler: Any, output: Any, begin_ns: int) -> None:
        """A step was planned: note who comes in, and what it computes."""
        preempted, self._preempted = self._preempted, 0
        tokens = output.num_scheduled_tokens
        if not tokens:
            return
        number = self._planned = self.engine.next_step()
        for data in output.scheduled_new_reqs:
            self._join(data.req_id, number, begin_ns, data.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for request_id in _resumed(cached):
            self._join(request_id, number, begin_ns, cached.num_computed_tokens[cached.req_ids.index(request_id)])
        prefill_tokens = 0
        producers = []
        for request_id, sequence in tuple(self._prefilling.items()):
            computed = tokens.get(request_id)
            if computed is not None:
                prefill_tokens += computed
                if not sequence.output_tokens:
                    sequence.prefill_steps += 1
                if _is_complete(sequence.request):
                    del self._prefilling[request_id]
                    producers.append((sequence, sequence.join_step))
        if len(self._plans) >= MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[id(output)] = _Plan(
            output, number, begin_ns, len(tokens), prefill_tokens, output.total_num_scheduled_tokens - prefill_tokens,
            _waiting(scheduler), preempted, _kv_usage(scheduler), producers,
        )  # fmt: skip

    def evicted(self, request: Any, at_ns: int) -> None:
        """The scheduler takes a sequence out of the batch; it will compute its prompt and output again."""
        self._preempted += 1
        sequence = self._sequences.get(request.request_id)
        if sequence is None or not sequence.join_step:
            return
        self._prefilling.pop(request.request_id, None)
        sequence.join_step = 0
        sequence.output_tokens = request.num_output_tokens
        member = sequence.member
        if member is not None:
            member.running -= 1
            if not member.running:
                self.engine.leave(member.key, self._planned, at_ns)

    def computed(self, output: Any, sampled: Any, at_ns: int) -> None:
        """The tokens of a step are on the host: record it, and the first tokens that nobody foresaw."""
        plan = self._plans.pop(id(output), None)
        if plan is None:
            return
        self._completed = plan.number
        self._record(plan, at_ns)
        for sequence, join_step in plan.producers:
            member = sequence.member
            # Evicted or finished meanwhile: the engine throws this token away.
            if member is None or sequence.join_step != join_step or sequence.request.pooling_params is not None:
                continue
            if sequence.foreseen_step != plan.number and (not member.has_token or member.running == 1):
                self.engine.first_token(member.key, plan.number, at_ns)
            member.has_token = True
        drafts = output.scheduled_spec_decode_tokens
        if drafts:
            self._count_drafts(drafts, sampled)

    def updated(self, outputs: Any, at_ns: int) -> None:
        """The scheduler took the tokens in: finish the sequences that are over."""
        while self._telling and (self._telling[0].num_output_tokens or self._telling[0].is_finished()):
            vllm_marks.drop_times(self._telling.popleft())
        for part in outputs.values():
            for output in part.outputs:
                if output.finish_reason is not None:
                    self.finished(output.request_id, at_ns)

    def finished(self, request_id: str, at_ns: int, *, aborted: bool = False) -> None:
        """A sequence is over, by its last token or because it was given up."""
        sequence = self._sequences.get(request_id)
        # A streaming session tells of an end and goes on.
        if sequence is None or not sequence.request.is_finished():
            return
        del self._sequences[request_id]
        self._prefilling.pop(request_id, None)
        member = sequence.member
        if member is None:
            return
        member.output_tokens += sequence.request.num_output_tokens
        member.prefill_steps = max(member.prefill_steps, sequence.prefill_steps)
        member.open -= 1
        was_running = bool(sequence.join_step)
        if was_running:
            sequence.join_step = 0
            member.running -= 1
        if not member.open:
            del self._members[member.key]
            self._finish(member, at_ns, aborted)
        elif was_running and not member.running:
            self.engine.leave(member.key, self._completed, at_ns)

    def failed(self, at_ns: int) -> None:
        """The engine gave up: the steps under way end here, without tokens."""
        while self._plans:
            self._record(self._plans.pop(next(iter(self._plans))), at_ns, failed=True)

    def _join(self, request_id: str, number: int, at_ns: int, cached_tokens: int) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.join_step:
            return
        sequence.join_step = number
        self._prefilling[request_id] = sequence
        member = sequence.member
        if member is None:
            return
        member.running += 1
        if member.running == 1:
            request = sequence.request
            samples_token = request.pooling_params is None and _is_complete(request)
            if samples_token:
                sequence.foreseen_step = number
            self.engine.join(member.key, number, at_ns, cached_tokens, samples_token=samples_token)
            if not member.has_token and tells_callers():
                vllm_marks.add_times(request, request.tailspan_queued_ns, at_ns)
                self._telling.append(request)

    def _finish(self, member: Member, at_ns: int, aborted: bool) -> None:
        engine = self.engine
        if member.drafted:
            engine.attribute(member.key, attr.DRAFT_TOKENS, member.drafted)
            engine.attribute(member.key, attr.ACCEPTED_TOKENS, member.accepted)
        prefill_steps = max(1, member.prefill_steps)
        engine.finish(member.key, self._completed, at_ns, member.output_tokens, prefill_steps, aborted=aborted)

    def _count_drafts(self, drafts: dict[str, list[int]], sampled: Any) -> None:
        for request_id, draft in drafts.items():
            sequence = self._sequences.get(request_id)
            if sequence is not None and sequence.member is not None:
                tokens = sampled.sampled_token_ids[sampled.req_id_to_index[request_id]]
                sequence.member.drafted += len(draft)
                sequence.member.accepted += max(0, len(tokens) - 1)

    def _record(self, plan: _Plan, end_ns: int, *, failed: bool = False) -> None:
        self.engine.step(
            plan.number, plan.begin_ns, end_ns,
            requests=plan.requests, prefill_tokens=plan.prefill_tokens, decode_tokens=plan.decode_tokens,
            waiting=plan.waiting, preempted=plan.preempted, kv_usage=plan.kv_usage, failed=failed,
        )  # fmt: skip


def _is_complete(request: Any) -> bool:
    """Whether the step just planned computes all of the prompt, and of the output if it was lost."""
    return bool(request.num_computed_tokens >= request.num_tokens)


def _resumed(cached: Any) -> Iterable[str]:
    ids = getattr(cached, "resumed_req_ids", None)
    if ids is not None:
        return tuple(ids)
    flags = getattr(cached, "resumed_from_preemption", ())  # before 0.12
    return [request_id for request_id, is_resumed in zip(cached.req_ids, flags, strict=False) if is_resumed]


def _waiting(scheduler: Any) -> int:
    counts = getattr(scheduler, "get_request_counts", None)
    return int(counts()[1]) if counts is not None else len(scheduler.waiting)


def _kv_usage(scheduler: Any) -> float:
    manager = getattr(scheduler, "kv_cache_manager", None)
    return float(getattr(manager, "usage", float("nan")))
