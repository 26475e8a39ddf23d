"""Holding traces against the client's clock: what is missing, doubled or off must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan_queries.demo.agreement import TracedRequest, compare, comparison
from tailspan_queries.demo.client import Observation

MS = 1_000_000


def observed(number: int = 1, e2e_ms: float = 100, ttft_ms: float = 40, error: str = "") -> Observation:
    """Return what the client saw of a request."""
    return Observation(
        number=number,
        trace_id=f"{number:032x}",
        parent_span_id=f"{number:016x}",
        stream=True,
        sent_unix_ns=1,
        late_ns=0,
        connect_ns=MS,
        first_byte_ns=MS,
        first_content_ns=int(ttft_ms * MS),
        last_byte_ns=int(e2e_ms * MS),
        http_status=200,
        prompt_tokens=1,
        output_tokens=1,
        error=error,
    )


def traced(
    number: int = 1, e2e_ms: float = 99, ttft_ms: float = 40, parts: Sequence[float] = (59, 40)
) -> TracedRequest:
    """Return a trace of it whose stages lie end to end."""
    begin, stages = 1000, []
    for index, part in enumerate(parts):
        stages.append((f"stage{index}", begin, int(part * MS)))
        begin += int(part * MS)
    return TracedRequest(
        f"{number:032x}", f"{number:016x}", 1000, int(e2e_ms * MS), int(ttft_ms * MS), 1, tuple(stages)
    )


def test_a_perfect_trace_holds() -> None:
    """Stages that add up to the client's time less the network leave nothing unattributed."""
    found = compare([observed()], [traced()])
    assert found.holds
    assert (found.exactly_one_trace, found.traces, found.unattributed_ratio_p99, found.overlap_ns_max) == (1, 1, 0.0, 0)


def test_a_missing_trace_is_named() -> None:
    """A request without a trace breaks the proof and its id is given."""
    found = compare([observed(1), observed(2)], [traced(1)])
    assert not found.holds
    assert (found.traces, found.exactly_one_trace, found.missing) == (1, 1, (f"{2:032x}",))


def test_a_doubled_trace_is_named_and_not_compared() -> None:
    """Two request spans of one request break the proof."""
    found = compare([observed(1)], [traced(1), traced(1)])
    assert not found.holds
    assert found.doubled == (f"{1:032x}",)
    assert found.e2e.count == 0


def test_a_trace_with_a_wrong_parent_is_not_this_requests_trace() -> None:
    """The request span must name the client's span as its parent."""
    found = compare([observed()], [replace(traced(), parent_span_id="0" * 16)])
    assert found.exactly_one_trace == 0
    assert not found.holds


def test_traces_that_nobody_sent_are_counted() -> None:
    """A trace of the server that belongs to no request of the load is a stranger."""
    assert compare([observed(1)], [traced(1), traced(9)]).strangers == 1


def test_a_gap_between_stages_is_unattributed() -> None:
    """What no stage covers is a share of the client's time less the network."""
    found = compare([observed(e2e_ms=101)], [traced(e2e_ms=100, parts=(50, 40))])
    assert found.unattributed_ratio_p50 == pytest.approx(0.10)


def test_time_claimed_twice_is_unattributed_too() -> None:
    """Stages that add up to more than the client's time do not make the share negative or small."""
    found = compare([observed(e2e_ms=101)], [traced(e2e_ms=100, parts=(60, 60))])
    assert found.unattributed_ratio_p50 == pytest.approx(0.20)
    assert found.overlap_ns_max == 20 * MS


def test_overlapping_stages_are_found() -> None:
    """Two stages over the same time overlap by that time."""
    twice = replace(traced(), stages=(("a", 1000, 60 * MS), ("b", 1000 + 40 * MS, 30 * MS)))
    assert compare([observed()], [twice]).overlap_ns_max == 20 * MS


@pytest.mark.parametrize(
    ("client_ms", "trace_ms", "outside"),
    [(100, 95.1, 0), (1000, 981, 0), (100, 94, 1), (1000, 979, 1), (1000, 1021, 1)],
)
def test_a_time_agrees_within_five_milliseconds_or_two_percent(client_ms: float, trace_ms: float, outside: int) -> None:
    """Only a time that is beyond both limits counts as outside."""
    assert comparison([(int(client_ms * MS), int(trace_ms * MS))]).outside == outside


def test_the_wait_before_the_server_saw_a_request_is_shown() -> None:
    """A trace that begins long after the client's send says so."""
    late = replace(observed(), sent_unix_ns=1000 - 7 * MS)
    found = compare([observed(), late], [traced()])
    assert found.begin_ns_max == 7 * MS


def test_failed_requests_need_a_trace_but_no_times() -> None:
    """A failed request is counted and must have its trace; its times are not compared."""
    found = compare([observed(error="HTTP 500")], [traced(e2e_ms=5)])
    assert (found.failed, found.exactly_one_trace, found.e2e.count) == (1, 1, 0)


def test_nothing_sent_is_no_crash() -> None:
    """An empty load compares to zeros."""
    assert compare([], []).as_json()["unattributed_ratio"] == {"p50": 0.0, "p99": 0.0}


@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=9))
def test_a_partition_never_overlaps(parts: list[float]) -> None:
    """Stages laid end to end within the request overlap nowhere, however they are cut."""
    request = traced(e2e_ms=sum(parts) + 1, parts=tuple(parts))
    assert request.overlap_ns == 0
    assert request.attributed_ns <= request.e2e_ns
