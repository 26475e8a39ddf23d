"""The batch of one vLLM scheduler: who is in it, and what each planned step holds.

In: what `Scheduler.schedule()` planned and `update_from_output()` returned, as `vllm_scheduler` hands it on.
Out: the records of requests that the API process marked, and of every step. Units: monotonic ns.

vLLM has one `Request` for each sequence: n > 1 and several prompts in one call make several of one user request. The
user request is in the batch as long as one of its sequences is, and finished with the last of them.
A step is known by its `SchedulerOutput`: with asynchronous scheduling the next one is planned before this one is over.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tailspan import attributes as attr
from tailspan.engines import vllm_marks
from tailspan.engines.vllm_sequences import (
    Member,
    Plan,
    Sequence,
    delivers,
    is_complete,
    kv_usage_ratio,
    resumed_ids,
    waiting_count,
)
from tailspan.recorder import Engine
from tailspan.recorder.process import tells_callers

MAX_PLANS = 64
"""Planned steps under way: more than any pipeline holds, so the oldest belong to steps that failed."""


class Batch:
    """All sequences of one scheduler; everything happens in the engine's own thread."""

    def __init__(self, engine: Engine) -> None:
        """Start empty."""
        self.engine = engine
        self._sequences: dict[str, Sequence] = {}
        self._members: dict[int, Member] = {}
        self._prefilling: dict[str, Sequence] = {}
        self._plans: dict[int, Plan] = {}
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

    def planned(self, scheduler: Any, output: Any, begin_ns: int) -> int:
        """A step was planned: note who comes in, and what it computes. Return its number, 0 if it computes nothing."""
        preempted, self._preempted = self._preempted, 0
        tokens = output.num_scheduled_tokens
        if not tokens:
            return 0
        number = self._planned = self.engine.next_step()
        for data in output.scheduled_new_reqs:
            self._join(data.req_id, number, begin_ns, data.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for request_id in resumed_ids(cached):
            self._join(request_id, number, begin_ns, cached.num_computed_tokens[cached.req_ids.index(request_id)])
        prefill_tokens = 0
        producers = []
        for request_id, sequence in tuple(self._prefilling.items()):
            computed = tokens.get(request_id)
            if computed is not None:
                prefill_tokens += computed
                if not sequence.request.num_output_tokens:
                    sequence.prefill_steps += 1
                if is_complete(sequence.request):
                    del self._prefilling[request_id]
                    producers.append((sequence, sequence.join_step))
        if len(self._plans) >= MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[id(output)] = Plan(
            output, number, begin_ns, len(tokens), prefill_tokens, output.total_num_scheduled_tokens - prefill_tokens,
            waiting_count(scheduler), preempted, kv_usage_ratio(scheduler), producers,
        )  # fmt: skip
        return number

    def evicted(self, request: Any, at_ns: int) -> None:
        """The scheduler takes a sequence out of the batch; it will compute its prompt and output again."""
        self._preempted += 1
        sequence = self._sequences.get(request.request_id)
        if sequence is None or not sequence.join_step:
            return
        self._prefilling.pop(request.request_id, None)
        sequence.join_step = 0
        member = sequence.member
        if member is not None:
            member.running -= 1
            member.evicted_step = self._planned
            if not member.running:
                self._leave(member, self._planned, at_ns)

    def computed(self, output: Any, sampled: Any, at_ns: int) -> None:
        """The tokens of a step are on the host: record it, and the first tokens that nobody foresaw."""
        plan = self._plans.pop(id(output), None)
        if plan is None:
            return
        self._completed = plan.number
        self._record(plan, at_ns)
        for sequence, join_step in plan.producers:
            member = sequence.member
            if member is None or sequence.request.pooling_params is not None or not delivers(sequence, join_step):
                continue
            member.has_token = True
            if member.awaits_token:
                member.awaits_token = False
                if member.foreseen_step != plan.number:
                    self.engine.first_token(member.key, plan.number, at_ns)
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
            self._leave(member, max(self._completed, member.evicted_step), at_ns)

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
            member.awaits_token = True
            # Of several, one may go before its token is there, and the others stay.
            samples_token = member.open == 1 and request.pooling_params is None and is_complete(request)
            if samples_token:
                member.foreseen_step = number
            self.engine.join(member.key, number, at_ns, cached_tokens, samples_token=samples_token)
            if not member.has_token and tells_callers():
                vllm_marks.add_times(request, request.tailspan_queued_ns, at_ns)
                self._telling.append(request)

    def _leave(self, member: Member, step: int, at_ns: int) -> None:
        member.foreseen_step = 0
        self._tell_no_token(member, step, at_ns)
        self.engine.leave(member.key, step, at_ns)

    def _tell_no_token(self, member: Member, step: int, at_ns: int) -> None:
        """Say of a member that came back and goes without a token that its next one was after its last step."""
        if member.has_token and member.awaits_token:
            self.engine.first_token(member.key, step + 1, at_ns)

    def _finish(self, member: Member, at_ns: int, aborted: bool) -> None:
        engine = self.engine
        if member.drafted:
            engine.attribute(member.key, attr.DRAFT_TOKENS, member.drafted)
            engine.attribute(member.key, attr.ACCEPTED_TOKENS, member.accepted)
        if aborted:
            self._tell_no_token(member, self._completed, at_ns)
        prefill_steps = max(1, member.prefill_steps)
        engine.finish(member.key, self._completed, at_ns, member.output_tokens, prefill_steps, aborted=aborted)

    def _count_drafts(self, drafts: dict[str, list[int]], sampled: Any) -> None:
        found = sampled.sampled_token_ids
        for request_id, draft in drafts.items():
            sequence = self._sequences.get(request_id)
            if found and sequence is not None and sequence.member is not None:
                tokens = found[sampled.req_id_to_index[request_id]]
                # None: a part of the prompt; its drafts were not tried.
                if len(tokens):
                    sequence.member.drafted += len(draft)
                    sequence.member.accepted += len(tokens) - 1

    def _record(self, plan: Plan, end_ns: int, *, failed: bool = False) -> None:
        self.engine.step(
            plan.number, plan.begin_ns, end_ns,
            requests=plan.requests, prefill_tokens=plan.prefill_tokens, decode_tokens=plan.decode_tokens,
            waiting=plan.waiting, preempted=plan.preempted, kv_usage=plan.kv_usage, failed=failed,
        )  # fmt: skip
