"""The load client's clock, against a real HTTP server whose delays are known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tailspan.ids import parse_traceparent
from tailspan_queries.demo.client import Observation, Target, TraceContext, exchange, read_usage
from tailspan_queries.demo.processes import free_ports
from tailspan_queries.demo.workload import PlannedRequest

MS = 1_000_000


ChatServer = Callable[..., AbstractAsyncContextManager[Any]]


def planned(stream: bool = True, tokens: int = 4) -> PlannedRequest:
    """Return a request of the load."""
    return PlannedRequest(number=7, at_s=0.0, prompt="Why?", max_tokens=tokens, stream=stream)


async def send(port: int, plan: PlannedRequest, context: TraceContext | None = None) -> Observation:
    """Send it to a loopback port."""
    return await exchange(Target("127.0.0.1", port, "m"), plan, context or TraceContext.new(True), late_ns=0)


async def test_streamed_times_are_those_of_the_server(chat_server: ChatServer) -> None:
    """First body byte, first text and last byte are told apart and fall on the server's delays."""
    async with chat_server(first_s=0.06, gap_s=0.03) as server:
        seen = await send(server.port, planned(tokens=4))
    assert seen.error == ""
    assert 0 < seen.first_byte_ns < 40 * MS
    assert 60 * MS <= seen.first_content_ns < 100 * MS
    assert 150 * MS <= seen.last_byte_ns < 220 * MS
    assert (seen.prompt_tokens, seen.output_tokens) == (5, 4)


async def test_the_first_text_of_a_whole_answer_is_its_first_byte(chat_server: ChatServer) -> None:
    """Without streaming, the time to the first token is the time to the first byte of the body."""
    async with chat_server(first_s=0.05, gap_s=0.0) as server:
        seen = await send(server.port, planned(stream=False))
    assert seen.error == ""
    assert 50 * MS <= seen.first_content_ns == seen.first_byte_ns <= seen.last_byte_ns < 100 * MS


async def test_the_trace_context_travels_in_its_header(chat_server: ChatServer) -> None:
    """The server receives the ids and the sampled flag that the observation reports."""
    context = TraceContext.new(sampled=False)
    async with chat_server() as server:
        seen = await send(server.port, planned(), context)
        header = server.seen[0]["traceparent"]
    assert parse_traceparent(header) == (context.trace_id, context.span_id, 0)
    assert (int(seen.trace_id, 16), int(seen.parent_span_id, 16)) == (context.trace_id, context.span_id)


async def test_many_at_once_do_not_delay_each_other(chat_server: ChatServer) -> None:
    """Twenty requests in flight are each measured as if they were alone."""
    async with chat_server(first_s=0.1, gap_s=0.01) as server:
        seen = await asyncio.gather(*(send(server.port, planned(tokens=3)) for _ in range(20)))
    assert all(not each.error and 100 * MS <= each.first_content_ns < 160 * MS for each in seen)
    assert len({each.trace_id for each in seen}) == 20


@pytest.mark.parametrize("stream", [True, False])
async def test_a_dropped_connection_is_an_error_of_the_observation(chat_server: ChatServer, stream: bool) -> None:
    """A server that goes away in the middle leaves a reason and no last byte, and raises nothing."""
    async with chat_server(drop=True) as server:
        seen = await send(server.port, planned(stream=stream))
    assert "closed" in seen.error
    assert seen.last_byte_ns == -1


async def test_a_refused_request_carries_status_and_text(chat_server: ChatServer) -> None:
    """A status other than 200 becomes an error that quotes the answer."""
    async with chat_server(status=503) as server:
        seen = await send(server.port, planned())
    assert seen.http_status == 503
    assert "sad!" in seen.error


async def test_nobody_listening_is_an_error_of_the_observation() -> None:
    """A refused connection is reported with no times at all."""
    seen = await send(free_ports(1)[0], planned())
    assert "Connect" in seen.error
    assert (seen.first_byte_ns, seen.first_content_ns, seen.last_byte_ns) == (-1, -1, -1)


@pytest.mark.parametrize("body", [b"", b"not json", b"data: [DONE]\n\n", b"[1]", b'{"usage": null}'])
def test_a_body_without_usage_has_no_token_counts(body: bytes) -> None:
    """Whatever the server sends, reading the usage does not fail."""
    assert read_usage(body, stream=body.startswith(b"data")) == {}
