"""What the records of a vLLM scheduler say, against a plain account of what a hand-made scheduler did."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailspan import attributes as attr
from tailspan.agent.model import Membership
from tailspan.engines.vllm_batch import MAX_PLANS, Batch
from tailspan.recorder import Engine, Request, begin_request, now_ns
from tests.engines.recorded import OUTPUT, Recorded, Traced
from tests.engines.vllm_simulated import FakeRequest, FakeScheduler, Truth

TICK_NS = 1000
_ids = itertools.count()
sequences = st.tuples(st.integers(1, 20), st.integers(1, 6))
"""Tokens of the prompt, and of the output."""
users = st.lists(
    st.tuples(
        st.sampled_from(["traced", "traced", "untraced", "pooling"]), st.lists(sequences, min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=4,
)
actions = st.lists(
    st.sampled_from(["schedule", "schedule", "schedule", "update", "update", "add", "evict", "abort"]), max_size=60
)


class Run:
    """One example: user requests, the scheduler and the batch under test."""

    def __init__(self, depth: int) -> None:
        """`depth` steps may be under way at once: 1 without asynchronous scheduling."""
        self.depth = depth
        clock = itertools.count(now_ns(), TICK_NS)
        self.clock = clock
        self.batch = Batch(Engine("vllm", "model"))
        self.scheduler = FakeScheduler(self.batch, clock)
        self.users: dict[int, Request] = {}

    def sequences_of(self, kind: str, sizes: list[tuple[int, int]]) -> list[FakeRequest]:
        """Begin a user request and return its sequences, not yet added."""
        key = None
        if kind != "untraced":
            request = begin_request("generate", next(self.clock))
            self.users[key := request.key] = request
            self.batch.engine.queued(key, next(self.clock), sizes[0][0])
        pooling = object() if kind == "pooling" else None
        return [FakeRequest(f"r{next(_ids)}", key, prompt, 1 if pooling else out, pooling) for prompt, out in sizes]

    def act(self, action: str, to_come: list[list[FakeRequest]]) -> None:
        """Do something, if it is possible now."""
        scheduler = self.scheduler
        if action == "schedule" and len(scheduler.under_way) < self.depth:
            scheduler.schedule()
        elif action == "update" and scheduler.under_way:
            scheduler.update()
        elif action == "add" and to_come:
            for sequence in to_come.pop(0):
                scheduler.add(sequence)
        elif action == "evict" and scheduler.running:
            scheduler.evict()
        elif action == "abort" and scheduler.requests:
            scheduler.abort(next(iter(scheduler.requests.values())))

    def finish(self) -> None:
        """Run until nobody is left, then end the user requests."""
        while self.scheduler.requests or self.scheduler.under_way:
            for action in ("schedule", "update"):
                self.act(action, [])
        self.finish_users()

    def finish_users(self) -> None:
        """End the user requests."""
        for request in self.users.values():
            request.end(next(self.clock))

    def left_over(self) -> dict[str, int]:
        """What the batch still holds."""
        names = ("_sequences", "_members", "_prefilling", "_plans", "_telling")
        return {name: len(getattr(self.batch, name)) for name in names if getattr(self.batch, name)}


@pytest.mark.parametrize("depth", [1, 2, 3])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(users=users, actions=actions)
def test_the_records_say_what_happened(
    recorded: Recorded, depth: int, users: list[tuple[str, list[tuple[int, int]]]], actions: list[str]
) -> None:
    """Membership, first tokens, chunks, counts, ends and steps, evicted or aborted at any moment; nothing is kept."""
    run = Run(depth)
    to_come = [run.sequences_of(kind, sizes) for kind, sizes in users]
    run.act("add", to_come)
    for action in actions:
        run.act(action, to_come)
    while to_come:
        run.act("add", to_come)
        run.act("schedule", to_come)
    run.finish()
    assert run.left_over() == {}
    known = len(recorded.requests), len(recorded.steps)
    recorded.read()
    if run.users:
        recorded.wait(known[0] + len(run.users))
    sizes = {request.key: len(sizes) for request, (_, sizes) in zip(
        run.users.values(), [user for user in users if user[0] != "untraced"], strict=True
    )}  # fmt: skip
    for traced in recorded.requests[known[0] :]:
        check_request(traced, run.scheduler.truths[traced.state.key], alone=sizes[traced.state.key] == 1)
    if run.users:
        check_steps(run, recorded, known[1])


def check_request(traced: Traced, truth: Truth, *, alone: bool) -> None:
    """Compare a request with what happened to it; `alone`: it has one sequence."""
    state = traced.state
    memberships = state.memberships
    assert [(part.join_step, part.join_ns) for part in memberships] == truth.joins
    assert [part.leave_ns for part in memberships if part.leave_ns is not None] == truth.leaves
    assert (state.finish_ns, state.was_aborted) == (truth.finished_ns, truth.aborted)
    assert state.attributes.get(OUTPUT, 0) == truth.output_tokens
    first = truth.tokens[0] if truth.tokens else (None, None)
    assert (state.first_token_step, state.first_token_ns) == first
    tokens = [at_ns for _, at_ns in truth.tokens]
    assert set(tokens) <= set(traced.token_times)
    if alone:
        assert traced.token_times == tokens
        assert state.prefill_steps == max(1, truth.chunks)
    if memberships:
        assert state.finish_step is not None
    check_stages(traced, memberships)


def check_stages(traced: Traced, memberships: list[Membership]) -> None:
    """All time from the queue to the end is explained, and what was evicted says so."""
    assert traced.state.queued_ns is not None
    assert traced.gap_ns == traced.state.queued_ns - traced.begin_ns
    assert traced.stages == sorted(traced.stages, key=lambda stage: stage.begin_ns)
    if len(memberships) > 1:
        assert "preempted" in traced.stage_names


def check_steps(run: Run, recorded: Recorded, known: int) -> None:
    """Compare the steps with what was planned."""
    own = [step for step in recorded.steps[known:] if step.engine == run.batch.engine.id]
    found = sorted(own, key=lambda step: step.number)
    assert [step.number for step in found] == list(range(1, len(run.scheduler.steps) + 1))
    for step, planned in zip(found, run.scheduler.steps, strict=True):
        assert (step.begin_ns, step.end_ns) == (planned.begin_ns, planned.end_ns)
        assert (step.requests, step.waiting, step.preempted) == (planned.requests, planned.waiting, planned.preempted)
        assert step.prefill_tokens == planned.prefill_tokens
        assert step.decode_tokens == planned.tokens - planned.prefill_tokens


def test_a_step_that_fails(recorded: Recorded) -> None:
    """It has an end and says that it failed, and nobody is said to have a token of it."""
    run = Run(depth=2)
    (sequence,) = run.sequences_of("traced", [(4, 3)])
    run.scheduler.add(sequence)
    run.act("schedule", [])
    run.batch.failed(next(run.clock))
    run.scheduler.abort(sequence)
    run.finish_users()
    assert run.left_over() == {}
    request = recorded.one()
    assert request.state.was_aborted
    assert request.token_times == []
    assert [step.failed for step in recorded.steps] == [True]


def test_steps_that_never_end_are_forgotten(recorded: Recorded) -> None:
    """Of steps that were planned and of which nothing more was heard, only so many are kept."""
    run = Run(depth=10 * MAX_PLANS)
    (sequence,) = run.sequences_of("traced", [(10**6, 1)])
    run.scheduler.add(sequence)
    for _ in range(3 * MAX_PLANS):
        run.act("schedule", [])
    assert run.left_over()["_plans"] == MAX_PLANS


def test_drafts_are_counted_where_they_were_tried(recorded: Recorded) -> None:
    """Three proposed and two of them accepted; a step that samples nothing, and an unknown request, do not count."""
    run = Run(depth=1)
    (sequence,) = run.sequences_of("traced", [(4, 9)])
    name = sequence.request_id
    run.scheduler.add(sequence)
    drafts = {name: [5, 6, 7], "unknown": [5]}
    for tokens in ([[1, 2, 3], [1]], [[], []], []):
        run.scheduler.schedule()
        _, output, _ = run.scheduler.under_way[-1]
        output.scheduled_spec_decode_tokens = drafts
        run.scheduler.sampled = SimpleNamespace(sampled_token_ids=tokens, req_id_to_index={name: 0, "unknown": 1})
        run.scheduler.update()
    run.finish()
    request = recorded.one()
    assert (request[attr.DRAFT_TOKENS], request[attr.ACCEPTED_TOKENS]) == (3, 2)


def test_untraced_sequences_count_in_the_steps_only(recorded: Recorded) -> None:
    """A batch whose every request is somebody else's has steps, and no request."""
    run = Run(depth=1)
    for sequence in run.sequences_of("untraced", [(4, 3), (2, 5)]):
        run.scheduler.add(sequence)
    run.finish()
    assert run.left_over() == {}
    begin_request("other", now_ns()).end(now_ns())
    recorded.one()
    assert [step.requests for step in recorded.steps] == [2, 2, 2, 1, 1]
