"""The partition of a request into stages, for orderly requests and for any mess of boundaries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailspan import attributes as attr
from tailspan.agent.decode import Step
from tailspan.agent.model import Interval, Membership, RequestState
from tailspan.agent.stages import partition, token_times_ns, unattributed_ns


def step(number: int, begin_ns: int, end_ns: int) -> Step:
    """Return a step of a batch of one."""
    return Step("e", number, begin_ns, end_ns, 0, 1, 1, 0, 0, None)


def walls(stages: list[Interval]) -> list[tuple[str, int]]:
    """Return (stage, wall time) in order."""
    return [(stage.stage, stage.end_ns - stage.begin_ns) for stage in stages]


def orderly() -> RequestState:
    """Return a request of 1000 ns that went through every stage; its tokens came at 500, 600 and 700."""
    return RequestState(
        key=1,
        begin_ns=0,
        end_ns=1000,
        measured=[Interval("receive", 0, 50, 50), Interval("tokenize", 60, 80, 20), Interval("tokenize", 85, 100, 15)],
        queued_ns=120,
        memberships=[Membership(1, 300, 0)],
        first_token_step=1,
        first_token_ns=500,
        finish_step=3,
        finish_ns=700,
        text_ready_ns=750,
        text_busy_ns=30,
    )


STEPS = {1: step(1, 300, 500), 2: step(2, 510, 600), 3: step(3, 600, 700)}


def test_an_orderly_request_is_cut_at_its_boundaries() -> None:
    """Each stage lies between its two boundaries; only the pause before the tokenizer is unattributed."""
    stages = partition(orderly(), 0, 1000, STEPS)
    assert walls(stages) == [
        ("receive", 50),
        ("tokenize", 40),
        ("dispatch", 20),
        ("queue", 180),
        ("prefill", 200),
        ("decode", 200),
        ("detokenize", 50),
        ("respond", 250),
    ]
    assert unattributed_ns(0, 1000, stages) == 10


def test_busy_time_is_the_work_not_the_waiting() -> None:
    """Queue is idle, decode is busy while steps run, the tokenizer for the sum of its calls."""
    busy = {stage.stage: stage.busy_ns for stage in partition(orderly(), 0, 1000, STEPS)}
    assert busy["queue"] == 0
    assert busy["tokenize"] == 35
    assert busy["prefill"] == 200
    assert busy["decode"] == 190
    assert busy["detokenize"] == 30


def test_an_eviction_is_cut_out_of_decode() -> None:
    """Evicted after 600 and back at 650: decode loses those 50 ns to `preempted`."""
    request = orderly()
    request.memberships = [Membership(1, 300, 0, leave_step=2, leave_ns=600), Membership(3, 650, 0)]
    named: dict[str, int] = {}
    for stage, wall in walls(partition(request, 0, 1000, STEPS)):
        named[stage] = named.get(stage, 0) + wall
    assert named["preempted"] == 50
    assert named["decode"] == 150


def test_a_request_that_died_in_the_queue_ends_there() -> None:
    """Without a first step the rest of the request is queue."""
    request = orderly()
    request.memberships, request.first_token_ns, request.finish_ns, request.text_ready_ns = [], None, None, None
    assert walls(partition(request, 0, 1000, {}))[-1] == ("queue", 880)


def test_an_abort_in_decode_ends_in_decode() -> None:
    """A disconnect before the last token leaves decode open until the request's end."""
    request = orderly()
    request.finish_ns = request.finish_step = request.text_ready_ns = None
    request.end_ns = 640
    assert walls(partition(request, 0, 640, STEPS))[-1] == ("decode", 140)


def test_a_refused_request_is_receive_and_respond() -> None:
    """A bad request never reaches the engine."""
    request = RequestState(key=1, begin_ns=0, end_ns=100, measured=[Interval("receive", 0, 60, 60)])
    assert walls(partition(request, 0, 100, {})) == [("receive", 60), ("respond", 40)]


def test_token_times_follow_from_the_steps_and_skip_evictions() -> None:
    """One token a step from the first token on, none while evicted."""
    request = orderly()
    assert token_times_ns(request, STEPS) == [500, 600, 700]
    request.memberships = [Membership(1, 300, 0, leave_step=1, leave_ns=500), Membership(3, 650, 0)]
    assert token_times_ns(request, STEPS) == [500, 700]


def test_steps_that_compute_an_evicted_prompt_again_give_no_token() -> None:
    """After an eviction with recompute tokens count from the step that gave one."""
    request = orderly()
    request.finish_step = 4
    request.memberships = [Membership(1, 300, 0, 1, 500), Membership(2, 510, 0, first_token_step=3)]
    assert token_times_ns(request, STEPS | {4: step(4, 700, 800)}) == [500, 700, 800]


times = st.one_of(st.none(), st.integers(-50, 1200))


@given(
    measured=st.lists(
        st.tuples(st.sampled_from(["receive", "tokenize"]), st.integers(-50, 1200), st.integers(-50, 1200)), max_size=4
    ),
    queued=times,
    members=st.lists(st.tuples(st.integers(-50, 1200), times), max_size=3),
    first=times,
    finish=times,
    text=times,
)
def test_whatever_arrives_the_stages_never_overlap(
    measured: list[tuple[str, int, int]],
    queued: int | None,
    members: list[tuple[int, int | None]],
    first: int | None,
    finish: int | None,
    text: int | None,
) -> None:
    """Any boundaries give known stages, in order, inside the request; with the rest they sum to its length."""
    request = RequestState(
        key=1,
        begin_ns=0,
        end_ns=1000,
        measured=[Interval(stage, begin, end, 1) for stage, begin, end in measured],
        queued_ns=queued,
        memberships=[Membership(1, join, 0, 1, leave) for join, leave in members],
        first_token_ns=first,
        first_token_step=1,
        finish_ns=finish,
        text_ready_ns=text,
    )
    stages = partition(request, 0, 1000, STEPS)
    position = 0
    for stage in stages:
        assert stage.stage in attr.STAGES
        assert position <= stage.begin_ns <= stage.end_ns <= 1000
        position = stage.end_ns
    rest = unattributed_ns(0, 1000, stages)
    assert 0 <= rest <= 1000
    assert rest + sum(wall for _, wall in walls(stages)) == 1000
