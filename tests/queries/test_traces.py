"""The trace report, and finding the trace that a user means."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.trace_spans import SpanRow
from tailspan_queries.traces import trace_report, tree
from tests.queries import traffic

Pair = tuple[traffic.Request, traffic.Request]
TRACE_ID = "ab" * 16


def test_two_requests_of_one_trace_have_their_own_ledgers(client: Client, pair: Pair) -> None:
    """Stages, rest and gaps belong to the request whose span is their parent, however the requests overlap."""
    report = trace_report(client, TRACE_ID)
    assert len(report.requests) == 2
    for ledger, request in zip(report.requests, pair, strict=True):
        assert ledger.request.span_id == request.span_id.hex()
        assert [(stage.stage, stage.duration_ns) for stage in ledger.stages] == [
            (stage.name, stage.wall_ns) for stage in request.stages
        ]
        assert ledger.unattributed_ns == request.gap_ns
        assert sum(ledger.totals_ns.values()) == request.e2e_ns
    first, second = report.requests
    end = pair[0].start_ns + pair[0].e2e_ns - 1_200_000
    assert first.gaps == ((end - 62_000_000, end),)
    assert second.gaps == ()
    assert report.interval == (pair[0].start_ns, pair[0].start_ns + pair[0].e2e_ns)


def test_spans_keep_times_to_the_nanosecond_and_their_attributes(client: Client, pair: Pair) -> None:
    """A span is read back as it was sent."""
    report = trace_report(client, TRACE_ID)
    assert len(report.spans) == 9
    last = report.requests[1].stages[-1]
    assert (last.start_ns, last.duration_ns) == (pair[1].start_ns + 2_500_000_000, 7)
    request = report.requests[1].request
    assert (request.status_code, request.status_message) == (2, "CUDA out of memory")
    assert request.attributes_string["error.type"] == "RuntimeError"
    assert request.attributes_int["http.response.status_code"] == 500
    assert request.request_id == "chatcmpl-0202020202020202"


def test_a_stage_is_joined_with_the_steps_of_its_engine(client: Client, steps: list[traffic.Step]) -> None:
    """A decode span sums up its steps, first to last, of its own engine and no other."""
    report = trace_report(client, TRACE_ID)
    (decode,) = (stage for stage in report.requests[0].stages if stage.stage == "decode")
    assert list(report.steps) == [decode.span_id]
    taken = [step for step in steps if 2 <= step.number <= 21]
    found = report.steps[decode.span_id]
    assert found.steps == len(taken) == 20
    assert found.requests_mean == pytest.approx(sum(step.requests for step in taken) / 20)
    assert found.decode_tokens == sum(step.requests for step in taken)
    assert (found.wall_ns, found.idle_ns) == (20 * 38_000_000, 20 * 2_000_000)


@pytest.mark.parametrize(
    "text",
    [
        TRACE_ID,
        TRACE_ID.upper(),
        f" {TRACE_ID}\n",
        TRACE_ID[:7],
        TRACE_ID[:31],
        f"00-{TRACE_ID}-0101010101010101-01",
        "chatcmpl-0101010101010101",
    ],
)
def test_a_trace_is_found_by_id_prefix_traceparent_and_request(client: Client, text: str) -> None:
    """All that names exactly one trace finds it."""
    assert trace_report(client, text).trace_id == TRACE_ID


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ababab", f"'ababab' fits several traces: ababab{'11' * 13}, {TRACE_ID}. Give more digits"),
        ("abab", "'abab' is too short for a trace id. Give at least 6 of its 32 hex digits"),
        ("ba" * 16, f"there is no trace or request '{'ba' * 16}'. List some with `tailspan slowest`"),
        ("bababababa", "there is no trace or request 'bababababa'. List"),
        ("chatcmpl-nothing", "there is no trace or request 'chatcmpl-nothing'. List"),
        ("ab" * 17, f"there is no trace or request '{'ab' * 17}'. List"),
        ("it's; drop", 'there is no trace or request "it\'s; drop". List'),
        ("  ", "the trace id is empty. Give"),
    ],
)
def test_what_names_no_trace_or_several_is_an_error(client: Client, text: str, message: str) -> None:
    """Nothing, too little and too much are told apart, each with what to do."""
    with pytest.raises(UserError) as caught:
        trace_report(client, text)
    assert str(caught.value).startswith(message)


def test_a_step_is_a_trace_too(client: Client) -> None:
    """A trace without requests is shown as well, with its links."""
    report = trace_report(client, f"{5:032x}")
    assert [span.name for span in report.spans] == ["step"]
    assert report.requests == ()
    assert list(report.spans[0].link_trace_ids) == [TRACE_ID]


def span(span_id: str, parent: str) -> SpanRow:
    """Return a span that has only a place in the tree."""
    empty: dict[str, object] = {"span_id": span_id, "parent_span_id": parent}
    for field in dataclasses.fields(SpanRow)[2:]:
        empty[field.name] = {"str": "", "int": 0}.get(str(field.type), ())
    return SpanRow(**empty)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["", *"abcdefghxy"])), max_size=8))
def test_every_span_is_in_the_tree_once(edges: list[tuple[str, str]]) -> None:
    """Whatever parents the spans name (none, missing, each other), each is listed once, after its parent."""
    spans = [span(span_id, parent) for span_id, parent in dict(edges).items()]
    ordered = tree(spans)
    assert sorted(found.span_id for _, found in ordered) == sorted(found.span_id for found in spans)
    position = {found.span_id: (index, depth) for index, (depth, found) in enumerate(ordered)}
    for index, (depth, found) in enumerate(ordered):
        if depth:
            parent_index, parent_depth = position[found.parent_span_id]
            assert parent_index < index
            assert parent_depth == depth - 1
