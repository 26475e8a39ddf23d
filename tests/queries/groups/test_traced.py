"""A trace of which only the engine's own tracing tells: its request and the stages that are computed for it."""

import pytest

from tailspan_queries import client as clients
from tailspan_queries.client import Client
from tailspan_queries.traces import trace_report
from tests.queries.groups.grouped_traffic import TRACED_NS, Grouped

SECOND_NS = 1_000_000_000


def test_a_request_that_only_its_engine_traced_has_its_stages(client: Client) -> None:
    """What the engine says in attributes of its span becomes a request with stages below it, in the order of time."""
    report = trace_report(client, "02" * 16)
    (found,) = report.requests
    request = found.request
    assert (request.name, request.model, request.request_id) == ("llm_request", "llama", "cmpl-1")
    assert (request.start_ns, request.duration_ns, request.ttft_ns) == (TRACED_NS + 1, 3 * SECOND_NS, 2 * SECOND_NS)
    assert (request.input_tokens, request.output_tokens) == (200, 11)
    assert found.totals_ns == {"queue": 1_500_000_000, "prefill": 500_000_000, "decode": SECOND_NS, "unattributed": 0}
    assert [span.start_ns - request.start_ns for span in found.stages] == [0, 1_500_000_000, 2 * SECOND_NS]
    assert {span.parent_span_id for span in found.stages} == {request.span_id}
    assert len({span.span_id for span in report.spans}) == 4
    assert report.spans == (request, *found.stages)


def test_stages_of_an_engine_are_asked_for_where_it_traced(
    client: Client, grouped: list[Grouped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace of tailspan's own is answered without the query for what engines trace."""
    asked: list[str] = []
    run = clients.Client.run

    def noting(self: Client, name: str, parameters: dict[str, object]) -> clients.Result:
        asked.append(name)
        return run(self, name, parameters)

    monkeypatch.setattr(clients.Client, "run", noting)
    trace_report(client, grouped[0].request.trace_id.hex())
    assert asked[:2] == ["trace_lookup", "trace"]
    assert "trace_engine" not in asked
    trace_report(client, "01" * 16)
    assert "trace_engine" in asked
