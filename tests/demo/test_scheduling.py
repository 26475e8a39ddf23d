"""The demo's query about the scheduler, on a real ClickHouse with spans whose numbers are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tailspan_queries import catalog
from tailspan_queries.client import Client, connect
from tailspan_queries.demo.reports import Scheduling, run_query
from tailspan_queries.times import Window
from tests.queries.traffic import BEGIN_NS, MINUTE_NS, Request, Stage, make_span, messages, request_spans
from tests.support.collector import RunningCollector

MS = 1_000_000
WINDOW = Window(BEGIN_NS, BEGIN_NS + MINUTE_NS)


def prefill(tokens: int, cached: int, chunks: int) -> Stage:
    """Return a prefill."""
    return Stage(
        "prefill",
        10 * MS,
        extra={attr.GEN_AI_INPUT_TOKENS: tokens, attr.CACHED_TOKENS: cached, attr.PREFILL_CHUNKS: chunks},
    )


def request(number: int, *stages: Stage, service: str = "demo") -> Request:
    """Return a request with these stages."""
    key = number.to_bytes(1, "big")
    return Request(key * 16, key * 8, BEGIN_NS + number * MS, "m", service, "i", stages, gap_ns=0)


def step(number: int, requests: int, prefill_tokens: int, decode_tokens: int, waiting: int) -> tuple[str, str, Span]:
    """Return a step's span."""
    keys: dict[str, str | int | float | bool] = {
        attr.ROLE: attr.ROLE_STEP,
        attr.STEP_NUMBER: number,
        attr.STEP_REQUESTS: requests,
        attr.STEP_PREFILL_TOKENS: prefill_tokens,
        attr.STEP_DECODE_TOKENS: decode_tokens,
        attr.STEP_WAITING: waiting,
        attr.STEP_KV_USAGE: requests / 10,
    }
    key = (number + 100).to_bytes(1, "big")
    return "demo", "i", make_span(key * 16, key * 8, b"", "step", BEGIN_NS + number * MS, MS, keys)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a database with three requests of the demo, one of another service, and three steps."""
    decode, evicted = Stage("decode", 5 * MS), Stage("preempted", MS)
    requests = [
        request(1, prefill(60, 0, 1), decode),
        request(2, prefill(100, 32, 3), decode),
        # Evicted twice: what is computed again is no prompt and no hit.
        request(3, prefill(40, 8, 1), decode, evicted, prefill(40, 32, 2), decode, evicted, prefill(40, 32, 2), decode),
        request(4, prefill(999, 999, 9), evicted, decode, service="another"),
    ]
    spans = [span for each in requests for span in request_spans(each)]
    spans += [step(1, 1, 60, 0, 0), step(2, 3, 20, 2, 4), step(3, 2, 0, 2, 1)]
    with RunningCollector(tmp_path_factory.mktemp("scheduling") / "data", "--batch-seconds", "0.2") as collector:
        collector.export(*messages(spans))
        assert collector.wait_rows(len(spans)) == len(spans)
        client = connect(collector.url)
        yield client
        client.close()


def test_the_scheduler_is_told_from_its_spans(client: Client) -> None:
    """Steps, prompts, hits, chunks and evictions of the service are counted, and nothing else."""
    (row,) = run_query(client, "scheduling", {**WINDOW.parameters, "service": "demo"})
    assert Scheduling(**row) == Scheduling(
        steps=3,
        mixed_steps=1,
        requests_mean=2.0,
        requests_max=3,
        waiting_max=4,
        kv_usage_max_ratio=0.3,
        prompts=3,
        prompt_tokens=200,
        cached_tokens=40,
        chunked_prompts=1,
        chunks_max=3,
        evictions=2,
        evicted_requests=1,
    )


def test_nothing_traced_counts_as_nothing(client: Client) -> None:
    """A service without a span gives one row of zeros."""
    (row,) = run_query(client, "scheduling", {**WINDOW.parameters, "service": "nobody"})
    assert set(row.values()) == {0}


def test_the_header_lists_what_the_query_returns(client: Client) -> None:
    """Names and types of the columns are those of the header."""
    text = (Path(__file__).parents[2] / "queries/tailspan_queries/demo/scheduling.sql").read_text()
    query = catalog.parse("demo/scheduling", text)
    described = client.execute(
        replace(query, sql=f"DESCRIBE ({query.sql})"), {**WINDOW.parameters, "service": "demo"}
    ).records()
    assert [(field.name, field.type) for field in query.columns] == [(row["name"], row["type"]) for row in described]
