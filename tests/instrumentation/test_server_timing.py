"""Telling callers their times in the engine: the header of a whole answer, the extra event of a stream."""

from __future__ import annotations

import json

import pytest

from tailspan.asgi_timing import Message, Timings, tell

DONE = b"data: [DONE]\n\n"


@pytest.fixture
def timings() -> Timings:
    """Queue 12.5 ms, prefill 30 ms, decode 100.25 ms."""
    times = Timings(1_000_000, 13_500_000)
    times.token(43_500_000)
    times.token(143_750_000)
    return times


def test_a_whole_answer_gets_a_header(timings: Timings) -> None:
    """The response start keeps its headers and gains `Server-Timing`."""
    start: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    told = tell(start, timings, "/v1/chat/completions", asked=False)
    value = b"queue;dur=12.5, prefill;dur=30, decode;dur=100.25"
    assert told["headers"] == [(b"content-type", b"application/json"), (b"server-timing", value)]
    assert len(start["headers"]) == 1


@pytest.mark.parametrize(
    ("route", "kind"), [("/v1/chat/completions", "chat.completion.chunk"), ("/v1/completions", "text_completion")]
)
def test_a_stream_that_asked_gets_an_event_before_its_end(timings: Timings, route: str, kind: str) -> None:
    """The event stands between the last text and [DONE], without choices, as the usage block does."""
    last = b'data: {"choices":[]}\n\n'
    told = tell({"type": "http.response.body", "body": last + DONE, "more_body": True}, timings, route, asked=True)
    body = told["body"]
    assert body.startswith(last)
    assert body.endswith(DONE)
    event = json.loads(body[len(last) : -len(DONE)].removeprefix(b"data: "))
    times = {"queue_ms": 12.5, "prefill_ms": 30.0, "decode_ms": 100.25}
    assert event == {"object": kind, "choices": [], "tailspan": times}
    assert told["more_body"]


def test_other_chunks_and_other_clients_are_left_alone(timings: Timings) -> None:
    """A chunk that is not the last, and a client that did not ask, get the very message that the server sent."""
    chunk: Message = {"type": "http.response.body", "body": b'data: {"choices":[{}]}\n\n', "more_body": True}
    assert tell(chunk, timings, "/v1/chat/completions", asked=True) is chunk
    end: Message = {"type": "http.response.body", "body": DONE}
    assert tell(end, timings, "/v1/chat/completions", asked=False) is end


def test_an_answer_without_a_token_has_no_negative_time() -> None:
    """Boundaries that never came count as nothing."""
    assert Timings(5_000_000, 9_000_000).milliseconds() == {"queue": 4.0, "prefill": 0.0, "decode": 0.0}
