"""The partition of a request into stages, for orderly requests and for any mess of boundaries."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tailspan import attributes as attr
from tailspan.agent.decode import Step
from tailspan.agent.model import Interval, Membership, RequestState
from tailspan.agent.stages import partition, token_times_ns, unattributed_ns
from tailspan.agent.timeline import Timeline


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
TIMELINE, NOTHING = Timeline(STEPS), Timeline({})


def test_an_orderly_request_is_cut_at_its_boundaries() -> None:
    """Each stage lies between its two boundaries; only the pause before the tokenizer is unattributed."""
    stages = partition(orderly(), 0, 1000, TIMELINE)
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
    busy = {stage.stage: stage.busy_ns for stage in partition(orderly(), 0, 1000, TIMELINE)}
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
    for stage, wall in walls(partition(request, 0, 1000, TIMELINE)):
        named[stage] = named.get(stage, 0) + wall
    assert named["preempted"] == 50
    assert named["decode"] == 150


def test_a_request_that_died_in_the_queue_ends_there() -> None:
    """Without a first step the rest of the request is queue."""
    request = orderly()
    request.memberships, request.first_token_ns, request.finish_ns, request.text_ready_ns = [], None, None, None
    assert walls(partition(request, 0, 1000, NOTHING))[-1] == ("queue", 880)


def test_an_abort_in_decode_ends_in_decode() -> None:
    """A disconnect before the last token leaves decode open until the request's end."""
    request = orderly()
    request.finish_ns = request.finish_step = request.text_ready_ns = None
    request.end_ns = 640
    assert walls(partition(request, 0, 640, TIMELINE))[-1] == ("decode", 140)


def test_a_refused_request_is_receive_and_respond() -> None:
    """A bad request never reaches the engine."""
    request = RequestState(key=1, begin_ns=0, end_ns=100, measured=[Interval("receive", 0, 60, 60)])
    assert walls(partition(request, 0, 100, NOTHING)) == [("receive", 60), ("respond", 40)]


def test_token_times_follow_from_the_steps_and_skip_evictions() -> None:
    """One token a step from the first token on, none while evicted."""
    request = orderly()
    assert token_times_ns(request, TIMELINE) == [500, 600, 700]
    request.memberships = [Membership(1, 300, 0, leave_step=1, leave_ns=500), Membership(3, 650, 0)]
    assert token_times_ns(request, TIMELINE) == [500, 700]


def test_steps_that_compute_an_evicted_prompt_again_give_no_token() -> None:
    """After an eviction with recompute tokens count from the step that gave one."""
    request = orderly()
    request.finish_step = 4
    request.memberships = [Membership(1, 300, 0, 1, 500), Membership(2, 510, 0, first_token_step=3)]
    assert token_times_ns(request, Timeline(STEPS | {4: step(4, 700, 800)})) == [500, 700, 800]


def by_hand(*measured: tuple[str, int, int], begin_ns: int = 0, end_ns: int = 1000) -> list[tuple[str, int, int]]:
    """Return the partition of a request without engine as (stage, begin, end)."""
    parts = [Interval(stage, begin, end, end - begin) for stage, begin, end in measured]
    request = RequestState(key=1, begin_ns=begin_ns, end_ns=end_ns, measured=parts)
    return [(s.stage, s.begin_ns, s.end_ns) for s in partition(request, begin_ns, end_ns, NOTHING)]


def test_stages_measured_by_hand_are_taken_as_they_are() -> None:
    """Without engine every stage has its own interval; pauses and the rest stay unattributed, nothing is derived."""
    measured = (("tokenize", 10, 100), ("queue", 100, 300), ("prefill", 310, 500), ("decode", 500, 900))
    assert by_hand(*measured) == list(measured)


def test_hand_measured_rounds_stay_apart_and_an_eviction_is_cut_out() -> None:
    """Two answers one after the other are two prefills and two decodes; `preempted` inside decode splits it."""
    measured = (("prefill", 0, 100), ("decode", 100, 400), ("prefill", 400, 500), ("decode", 500, 900))
    assert by_hand(*measured) == list(measured)
    assert by_hand(("decode", 0, 900), ("preempted", 300, 400)) == [
        ("decode", 0, 300),
        ("preempted", 300, 400),
        ("decode", 400, 900),
    ]


def test_output_work_between_decode_parts_is_busy_time_of_the_output_stages() -> None:
    """Streaming by hand: decode lasts to its last part; what follows is detokenize, with the work of all its parts."""
    parts = [
        Interval("decode", 0, 100, 100),
        Interval("detokenize", 100, 130, 30),
        Interval("respond", 130, 150, 20),
        Interval("decode", 150, 300, 150),
    ]
    request = RequestState(key=1, begin_ns=0, end_ns=1000, measured=parts)
    assert partition(request, 0, 1000, NOTHING) == [
        Interval("decode", 0, 300, 250),
        Interval("detokenize", 300, 300, 30),
    ]
    request.measured.append(Interval("detokenize", 300, 340, 40))
    assert partition(request, 0, 1000, NOTHING)[-1] == Interval("detokenize", 300, 340, 70)


def test_a_stage_that_began_and_did_not_end_lasts_until_the_request_was_lost() -> None:
    """A begin is closed by its own end; one without was under way."""
    parts = [
        Interval("tokenize", 10, 0, 0),
        Interval("tokenize", 10, 60, 50),
        Interval("queue", 60, 0, 0),
        Interval("queue", 60, 300, 0),
        Interval("prefill", 310, 0, 0),
    ]
    request = RequestState(key=1, begin_ns=0, end_ns=1000, measured=parts)
    assert partition(request, 0, 1000, NOTHING) == [
        Interval("tokenize", 10, 60, 50),
        Interval("queue", 60, 300, 0),
        Interval("prefill", 310, 1000, 690),
    ]


def test_over_http_the_rest_after_decode_is_respond_and_after_prefill_unattributed() -> None:
    """`respond` is derived only where an answer can have been under way."""
    assert by_hand(("receive", 0, 10), ("decode", 10, 900))[-1] == ("respond", 900, 1000)
    assert by_hand(("receive", 0, 10), ("prefill", 10, 900))[-1] == ("prefill", 10, 900)
    assert by_hand(("decode", 10, 900)) == [("decode", 10, 900)]


def test_with_an_engine_measured_stages_add_what_it_does_not_say() -> None:
    """The begin of the queue, the text stage and the work of the answer; prefill and decode stay the engine's."""
    request = orderly()
    request.text_ready_ns = None
    request.text_busy_ns = 0
    request.measured += [
        Interval("queue", 110, 300, 0),
        Interval("prefill", 120, 690, 570),
        Interval("detokenize", 710, 740, 30),
        Interval("respond", 800, 900, 100),
    ]
    stages = partition(request, 0, 1000, TIMELINE)
    assert walls(stages)[2:] == [
        ("dispatch", 10),
        ("queue", 190),
        ("prefill", 200),
        ("decode", 200),
        ("detokenize", 40),
        ("respond", 260),
    ]
    assert [stage.busy_ns for stage in stages[-2:]] == [30, 100]


times = st.one_of(st.none(), st.integers(-50, 1200))


@given(
    measured=st.lists(
        st.tuples(st.sampled_from(attr.STAGES), st.integers(-50, 1200), st.integers(-50, 1200)), max_size=8
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
    stages = partition(request, 0, 1000, TIMELINE)
    position = 0
    for stage in stages:
        assert stage.stage in attr.STAGES
        assert position <= stage.begin_ns <= stage.end_ns <= 1000
        position = stage.end_ns
    rest = unattributed_ns(0, 1000, stages)
    assert 0 <= rest <= 1000
    assert rest + sum(wall for _, wall in walls(stages)) == 1000


@given(
    st.lists(st.tuples(st.sampled_from(attr.STAGES), st.integers(0, 400), st.integers(1, 100)), min_size=1, max_size=12)
)
def test_no_measured_time_is_lost_and_busy_time_fits(parts: list[tuple[str, int, int]]) -> None:
    """However nested: what a part covers is covered, and no stage worked longer than all its parts."""
    measured = [Interval(stage, begin, begin + length, length) for stage, begin, length in parts]
    request = RequestState(key=1, begin_ns=0, end_ns=1000, measured=measured)
    stages = partition(request, 0, 1000, NOTHING)
    union = {at for _, begin, length in parts for at in range(begin, begin + length)}
    covered = {at for stage in stages for at in range(stage.begin_ns, stage.end_ns)}
    assert union <= covered
    for name in attr.STAGES:
        busy = sum(stage.busy_ns or 0 for stage in stages if stage.stage == name)
        assert busy <= sum(length for stage, _, length in parts if stage == name)


step_times = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=12)


@given(step_times, st.booleans(), st.integers(0, 400), st.integers(0, 400))
def test_a_timeline_answers_like_a_look_at_every_step(
    drawn: list[tuple[int, int]], in_order: bool, begin_ns: int, end_ns: int
) -> None:
    """Steps in any order, overlapping or not: busy time and step numbers are those of a scan."""
    drawn = sorted(drawn) if in_order else drawn
    steps = {number: step(number, begin, begin + length) for number, (begin, length) in enumerate(drawn)}
    timeline = Timeline(steps)
    within = [each for each in steps.values() if each.end_ns > begin_ns and each.begin_ns < end_ns]
    between = (within[0].number, within[-1].number) if within else None
    assert timeline.between(begin_ns, end_ns) == between
    busy_ns = sum(max(0, min(each.end_ns, end_ns) - max(each.begin_ns, begin_ns)) for each in steps.values())
    assert timeline.busy_ns(begin_ns, end_ns) == max(0, min(busy_ns, end_ns - begin_ns))


maybe_step = st.one_of(st.none(), st.integers(0, 12))


@given(st.lists(st.tuples(st.integers(0, 12), maybe_step, maybe_step), max_size=4), st.integers(0, 12), maybe_step)
def test_token_times_are_those_of_every_step_that_counts(
    parts: list[tuple[int, int | None, int | None]], first: int, finish: int | None
) -> None:
    """However the memberships lie, each step in one of them and past its prompt gives one token."""
    steps = {number: step(number, number * 10, number * 10 + 10) for number in range(10)}
    members = [Membership(join, 0, 0, leave, 0, first_token_step=again) for join, leave, again in parts]
    request = RequestState(key=1, first_token_step=first, first_token_ns=7, finish_step=finish, memberships=members)
    last = 9 if finish is None else finish
    counted = [
        number
        for number in range(first + 1, last + 1)
        if number in steps
        and any(
            max(part.join_step, part.first_token_step or 0) <= number
            and (part.leave_step is None or number <= part.leave_step)
            for part in members
        )
    ]
    assert token_times_ns(request, Timeline(steps)) == [7, *(steps[number].end_ns for number in counted)]


def test_a_decode_of_1000_steps_is_not_quadratic() -> None:
    """Ten times the steps, evictions included, take at most some thirty times the time."""

    def cpu_s(length: int) -> float:
        steps = {number: step(number, number * 10, number * 10 + 9) for number in range(length)}
        evictions = [Membership(at, at * 10, 0, at + 5, at * 10 + 59) for at in range(0, length, 10)]
        request = RequestState(key=1, queued_ns=0, memberships=evictions, first_token_step=0, first_token_ns=9,
                               finish_step=length - 1, finish_ns=length * 10)  # fmt: skip
        begin_s = time.thread_time()
        assert len(partition(request, 0, length * 10, Timeline(steps))) >= length / 5 - 1
        assert len(token_times_ns(request, Timeline(steps))) >= length / 2
        return time.thread_time() - begin_s

    cpu_s(100)
    assert min(cpu_s(10_000) for _ in range(3)) < 30 * min(cpu_s(1_000) for _ in range(3))
