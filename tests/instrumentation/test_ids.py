"""Ids that the agent gives to spans: unique, valid, and alike where spans are neighbours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailspan.agent.ids import Ids

SPAN_ID = st.integers(1, 2**64 - 1)


@given(SPAN_ID, st.integers(1, 400))
def test_stages_of_a_request_have_ids_of_their_own(request_id: int, stages: int) -> None:
    """Whatever the request's id and however many stages it has, no two spans share one, and none is zero."""
    ids = Ids()
    found = [ids.stage(request_id, number) for number in range(stages)]
    assert len({request_id, *found}) == stages + 1
    assert all(0 < number < 2**64 for number in found)


@given(SPAN_ID)
def test_stages_share_seven_bytes_with_their_request(request_id: int) -> None:
    """The first 250 stages differ from the request in the last byte only."""
    ids = Ids()
    assert {ids.stage(request_id, number) >> 8 for number in range(250)} == {request_id >> 8}


@given(st.integers(0, 2**63 - 1))
def test_a_step_is_a_trace_of_its_own(number: int) -> None:
    """The same step number gives another trace id each time, random in the last 7 bytes; no id is zero."""
    ids = Ids()
    found = [ids.step(number) for _ in range(64)]
    assert len({trace_id & 2**56 - 1 for trace_id, _ in found}) == 64
    assert all(0 < trace_id < 2**128 and 0 < span_id < 2**64 for trace_id, span_id in found)


def test_steps_sort_by_worker_and_number() -> None:
    """Ids of one worker's steps are in the order of the steps and begin alike; another worker's begin otherwise."""
    ids, other = Ids(), Ids()
    traces, spans = zip(*(ids.step(number) for number in range(1000)), strict=True)
    assert list(traces) == sorted(traces)
    assert len(set(spans)) == 1000
    assert {trace_id >> 88 for trace_id in traces} == {traces[0] >> 88}
    assert {span_id >> 32 for span_id in spans} == {spans[0] >> 32}
    assert other.step(0)[0] >> 88 != traces[0] >> 88
