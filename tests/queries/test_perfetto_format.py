"""The small parts of the export, and that the strict reader of the format is strict."""

import copy
import io
import json
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan_queries import perfetto
from tailspan_queries.client import Client
from tailspan_queries.perfetto_events import (
    Slice,
    Track,
    complete,
    counter,
    flow,
    instant,
    microseconds,
    name_process,
    name_thread,
)
from tailspan_queries.perfetto_file import dumps
from tailspan_queries.perfetto_lanes import Forest, Packer
from tailspan_queries.perfetto_plan import Plan
from tailspan_queries.perfetto_records import Step, StepRange
from tailspan_queries.times import Window
from tests.queries.trace_format import check_trace, viewer_ns

BASE_NS = 1_795_953_600_000_000_000
Intervals = list[tuple[int, int]]


@given(st.integers(0, 2**50))
def test_a_time_is_exact_however_a_reader_rounds(offset_ns: int) -> None:
    """Cut or rounded, a time of up to 13 days gives back its nanoseconds."""
    value = json.loads(dumps(microseconds(offset_ns)))
    assert viewer_ns(value) == offset_ns
    assert round(value * 1000) == offset_ns


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40))
def test_a_lane_holds_nothing_that_overlaps(lengths: Intervals) -> None:
    """Intervals of one lane follow each other, and there are as many lanes as run at once."""
    intervals = sorted((begin, begin + length) for begin, length in lengths)
    packer = Packer()
    lanes: dict[int, Intervals] = {}
    for begin, end in intervals:
        lanes.setdefault(packer.place(begin, end), []).append((begin, end))
    for found in lanes.values():
        assert all(last[1] <= following[0] for last, following in pairwise(found))
    most = max((sum(begin <= at < end for begin, end in intervals) for at in range(71)), default=0)
    assert len(lanes) <= max(most + 1, 1)
    if all(begin < end for begin, end in intervals):
        assert len(lanes) == most


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"), st.sampled_from(["", *"abcdefghxy"]), st.integers(0, 30), st.integers(1, 15)
        ),
        max_size=8,
        unique_by=lambda item: item[0],
    )
)
def test_spans_of_others_nest_or_lie_apart(items: list[tuple[str, str, int, int]]) -> None:
    """Whatever parents and times spans have, each lane is one that a viewer can show."""
    forest = Forest()
    events: list[dict[str, Any]] = [*name_process(1, "a", "", 1)]
    named = set()
    for span, parent, begin, length in sorted(items, key=lambda item: (item[2], -item[3])):
        lane = forest.place(span, parent, begin, begin + length)
        track = Track(1, 100 + lane)
        if lane not in named:
            named.add(lane)
            events += name_thread(track, f"lane {lane}", lane)
        events.append(complete(Slice(track, begin, begin + length), span, "span", {}))
    trace = check_trace(document(events))
    assert sum(map(len, trace.lanes.values())) == len(items)


def document(events: list[dict[str, Any]]) -> str:
    """Return the text of a trace."""
    return json.dumps({"displayTimeUnit": "ms", "metadata": {}, "traceEvents": events})


def good() -> list[dict[str, Any]]:
    """Return a trace with an event of each kind."""
    lane, other = Track(1, 10), Track(1, 11)
    return [
        *name_process(1, "engine", "model", 1),
        *name_thread(lane, "requests", 0),
        *name_thread(other, "steps", 1),
        complete(Slice(lane, 1_000, 9_001), "request", "request", {}),
        complete(Slice(lane, 1_000, 5_003), "prefill", "stage", {}),
        complete(Slice(lane, 5_003, 9_001), "decode", "stage", {}),
        complete(Slice(other, 2_000, 4_000), "step", "step", {}),
        complete(Slice(other, 5_500, 6_000), "step", "step", {}),
        counter(1, 2_000, "batch", {"requests": 3}),
        instant(lane, 3_000, "first token", "request", {}, scope="t"),
        flow("s", lane, 1_000, 7),
        flow("t", other, 2_000, 7),
        flow("f", other, 5_500, 7),
    ]


def test_the_reader_takes_what_is_right() -> None:
    """A trace with each kind of event passes, nested as meant."""
    trace = check_trace(document(good()))
    request, prefill, decode = trace.lanes[1, 10]
    assert (prefill.parent, decode.parent, request.parent) == (request, request, None)
    assert [placed.event["name"] for placed in trace.flows[7]] == ["prefill", "step", "step"]


MISTAKES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "no_phase": lambda events: events[7].pop("ph"),
    "unknown_phase": lambda events: events[7].update(ph="Z"),
    "text_for_a_pid": lambda events: events[7].update(pid="1"),
    "no_duration": lambda events: events[7].pop("dur"),
    "no_length": lambda events: events[8].update(dur=0),
    "negative_duration": lambda events: events[7].update(dur=-1),
    "text_for_a_time": lambda events: events[7].update(ts="1"),
    "time_before_the_base": lambda events: events[7].update(ts=-1),
    "time_that_rounds_off": lambda events: events[7].update(ts=1.001),
    "child_outlives_parent": lambda events: events[9].update(dur=4),
    "siblings_overlap": lambda events: events[8].update(dur=4.5),
    "parent_after_child": lambda events: events.insert(9, events.pop(7)),
    "unknown_colour": lambda events: events[7].update(cname="pink"),
    "counter_of_text": lambda events: events[12].update(args={"requests": "3"}),
    "counter_of_nothing": lambda events: events[12].update(args={}),
    "counter_of_a_truth": lambda events: events[12].update(args={"requests": True}),
    "instant_without_scope": lambda events: events[13].pop("s"),
    "flow_without_end": lambda events: events.pop(),
    "flow_without_begin": lambda events: events.pop(14),
    "flow_back_in_time": lambda events: events[16].update(ts=1),
    "flow_in_no_slice": lambda events: events[16].update(ts=6),
    "flow_of_two_names": lambda events: events[15].update(name="other"),
    "process_without_name": lambda events: events.pop(0),
    "lane_without_name": lambda events: events.pop(3),
    "lane_named_twice": lambda events: events.append(events[3]),
    "metadata_of_a_wrong_type": lambda events: events[1].update(args={"sort_index": "1"}),
    "unknown_metadata": lambda events: events[0].update(name="process_color"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_reader_refuses_what_is_wrong(name: str) -> None:
    """Each kind of mistake is found."""
    events = copy.deepcopy(good())
    MISTAKES[name](events)
    with pytest.raises((AssertionError, KeyError)):
        check_trace(document(events))


def test_what_json_cannot_say_is_null() -> None:
    """A number that is none does not spoil the file."""
    assert dumps({"share": float("nan"), "more": [float("inf")]}) == '{"share":null,"more":[null]}'
    assert dumps({"name": "é\n"}) == '{"name":"é\\n"}'


def a_step(number: int) -> Step:
    """Return a step with ten layers."""
    parts = [f"{layer}/{kind}" for layer in range(10) for kind in ("attention", "mlp")]
    begin_ns = BASE_NS + number * 10_000_000
    return Step(
        span_id=f"{number:016x}", service="chat", instance="worker-0", model="llama", engine_id="engine-0",
        step=number, start_ns=begin_ns, wall_ns=9_000_000, idle_ns=1_000_000, execute_ns=None, sample_ns=None,
        requests=3, prefill_tokens=0, decode_tokens=3, waiting=0, preempted=0, kv_usage_ratio=0.5, weight=1.0,
        status_code=0, device="cuda", busy_ns=8_000_000, device_idle_ns=None, launch_ns=None, begin_ns=begin_ns,
        uncertainty_ns=None, parts=parts, parts_ns=[400_000.0] * len(parts), layers_steps=1, layers_mode="eager",
    )  # fmt: skip


class Sink(io.TextIOBase):
    """Takes text and keeps only how much it was."""

    size = 0

    def write(self, text: str) -> int:
        """Count."""
        self.size += len(text)
        return len(text)


def peak_bytes(monkeypatch: pytest.MonkeyPatch, steps: int) -> int:
    """Return the memory that the export of so many steps takes at most."""
    monkeypatch.setattr(perfetto, "read_steps", lambda *_: map(a_step, range(steps)))
    monkeypatch.setattr(perfetto, "read_spans", lambda *_: [])
    covered = Window(BASE_NS, BASE_NS + 1)
    plan = Plan((), (), (), (StepRange(covered),), steps, covered, (), BASE_NS)
    sink = Sink()
    tracemalloc.start()
    summary = perfetto.export(cast(Client, None), plan, cast(TextIO, sink))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary.steps == summary.sampled_steps == steps
    assert sink.size > steps * 32 * 100
    return peak


def test_memory_does_not_grow_with_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the steps take no more memory: nothing is held that is written."""
    peak_bytes(monkeypatch, 10)
    few = peak_bytes(monkeypatch, 200)
    assert peak_bytes(monkeypatch, 2000) < few + 50_000
