"""`transformers serve` over HTTP, one request after the other and with continuous batching."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailspan import attributes as attr
from tailspan.engines import asked
from tailspan.recorder import begin_request, now_ns
from tests.engines.recorded import INPUT, OUTPUT, Recorded, Traced
from tests.engines.serving import Server, serve

CHAT = "/v1/chat/completions"
ALL_STAGES = [
    "receive", "tokenize", "dispatch", "queue", "prefill", "decode", "detokenize", "respond",
]  # fmt: skip
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GAP_MS = 100.0
"""Only the time between the endpoint's entry and the tokenizer may be left over; generous for a busy test machine."""


def chat(tokens: int = 8, **more: Any) -> dict[str, Any]:
    """A chat request."""
    return {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": tokens, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Any, tokenizer: Any) -> Path:
    """The tiny model on disk."""
    path = tmp_path_factory.mktemp("served") / "tiny"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["sequential", "continuous"])
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    """A server that lives as long as the tests of this module need it; hooks come and go with each test."""
    with serve(folder, continuous_batching=request.param) as running:
        yield running


def check_complete(request: Traced, tokens: int, gap_ms: float = GAP_MS) -> None:
    """All stages are there, in order, and cover the request but for `gap_ms`."""
    assert (request.state.outcome, request.state.error_type, request.state.http_status) == ("ok", "", 200)
    names = list(request.stage_names)
    if (request.state.text_ready_ns or 0) >= (request.state.end_ns or 0):
        # The event loop sent the last text before the thread that had made it got the GIL back and took the time.
        names.append("respond")
    assert names == ALL_STAGES
    request.check_boundaries(gap_ms)
    assert request[OUTPUT] == tokens
    assert len(request.token_times) == tokens
    assert request.state.text_busy_ns > 0


def test_an_answer_in_one_piece(recorded: Recorded, server: Server, folder: Path) -> None:
    """A non-streamed chat answer has every stage, continues the caller's trace and carries ids and counts."""
    response = server.post(CHAT, chat(), TraceParent=TRACEPARENT, **{"X-Request-ID": "my-id"})
    usage = response.json()["usage"]
    request = recorded.one()
    check_complete(request, usage["completion_tokens"])
    assert request.state.name == f"POST {CHAT}"
    assert request.state.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert request.state.parent_id == 0xB7AD6B7169203331
    assert request[INPUT] == usage["prompt_tokens"]
    assert request[attr.GEN_AI_RESPONSE_ID] == "my-id"
    assert request[attr.GEN_AI_STREAM] is False
    assert request[attr.GEN_AI_OPERATION] == "chat"
    assert request[attr.GEN_AI_MODEL] == str(folder)
    assert request[attr.HTTP_ROUTE] == CHAT
    assert request.state.first_chunk_ns is not None
    # One body: the first chunk is the answer.
    assert request.state.first_chunk_ns >= (request.state.text_ready_ns or 0)


def test_a_streamed_answer(recorded: Recorded, server: Server) -> None:
    """TTFT is the first chunk with text, not the role; client and trace agree."""
    server.stream(CHAT, chat())
    recorded.wait(1)
    recorded.requests.clear()
    answer = server.stream(CHAT, chat(tokens=20))
    request = recorded.one()
    check_complete(request, 20)
    assert request[attr.GEN_AI_STREAM] is True
    first_chunk_ns = request.state.first_chunk_ns
    assert first_chunk_ns is not None
    assert (request.state.first_token_ns or 0) <= first_chunk_ns
    ttft_s = (first_chunk_ns - request.begin_ns) / 1e9
    e2e_s = (request.end_ns - request.begin_ns) / 1e9
    # The kernel's tick tells when the request came; on a busy virtual machine it comes some ms late (`asgi_arrival`).
    assert -0.005 <= answer.ttft_s - ttft_s < 0.05
    assert -0.005 <= answer.e2e_s - e2e_s < 0.05


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/v1/completions", {"prompt": "abc", "max_tokens": 5}, "text_completion"),
        ("/v1/responses", {"input": "abc", "max_output_tokens": 5}, "chat"),
    ],
)
def test_the_other_endpoints(
    recorded: Recorded, server: Server, path: str, body: dict[str, Any], operation: str, stream: bool
) -> None:
    """Completions and responses are traced like chats."""
    if stream:
        server.stream(path, body)
    else:
        assert server.post(path, body).status_code == 200
    request = recorded.one()
    check_complete(request, 5)
    assert request[attr.GEN_AI_OPERATION] == operation


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{no json", 422),
        (chat(no_such_field=1), 422),
        (chat(model="another"), 400),
    ],
)
def test_a_bad_request(recorded: Recorded, server: Server, body: dict[str, Any] | bytes, status: int) -> None:
    """What the server refuses is a complete request with its status, and no engine time."""
    assert server.post(CHAT, body).status_code == status
    request = recorded.one()
    assert (request.state.outcome, request.state.error_type) == ("ok", str(status))
    assert request.state.http_status == status
    assert request.stage_names == ["receive", "respond"]
    assert request.state.first_chunk_ns is None
    request.check_boundaries(gap_ms=0)


def test_other_routes_are_not_requests(recorded: Recorded, server: Server) -> None:
    """Health, model list and wrong methods leave no trace."""
    httpx.get(server.url + "/health")
    httpx.get(server.url + "/v1/models")
    httpx.get(server.url + CHAT)
    server.post("/v1/nothing", {})
    server.post(CHAT, chat(tokens=1))
    assert recorded.one().state.http_status == 200


def test_a_client_that_hangs_up_during_the_stream(recorded: Recorded, server: Server) -> None:
    """The request ends as client_disconnect with the tokens so far, and the engine stops."""
    server.stream(CHAT, chat(tokens=900), stop_after=4)
    request = recorded.one()
    assert request.state.outcome == "client_disconnect"
    output = request[OUTPUT]
    assert isinstance(output, int)
    assert 2 <= output < 900
    assert request.stage_names[:6] == ALL_STAGES[:6]
    request.check_boundaries(GAP_MS)


def test_a_client_that_hangs_up_while_it_waits(recorded: Recorded, server: Server) -> None:
    """Nobody reads from the socket meanwhile, so the answer is computed; then the disconnect is seen."""
    with pytest.raises(httpx.ReadTimeout):
        server.post(CHAT, chat(tokens=150), timeout_s=0.1)
    request = recorded.one()
    assert request.state.outcome == "client_disconnect"
    assert request[OUTPUT] == 150
    assert request.state.first_chunk_ns is None


def test_requests_at_the_same_time(recorded: Recorded, server: Server) -> None:
    """Each of five concurrent requests has its own complete trace; the steps of the engine do not overlap."""
    threads = [threading.Thread(target=server.stream, args=(CHAT, chat(tokens=10))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = recorded.wait(5)
    for request in requests:
        check_complete(request, 10, gap_ms=2000)  # threads wait for each other, and for the machine's other work
    assert len({request.state.trace_id for request in requests}) == 5
    assert max(step.waiting + step.requests for step in recorded.steps) >= 2
    assert all(earlier.end_ns <= later.begin_ns for earlier, later in pairwise(recorded.steps))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("stream", [False, True], ids=["in one piece", "streamed"])
@pytest.mark.parametrize("continuous_batching", [False, True], ids=["sequential", "continuous"])
def test_an_exception_in_the_model(
    recorded: Recorded,
    folder: Path,
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
    continuous_batching: bool,
    stream: bool,
) -> None:
    """Status 500, or an error event under status 200: the request is an error with the class of the exception."""
    forward, calls = type(model).forward, iter(range(1000))

    def fails_third(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise ArithmeticError("boom")
        return forward(*args, **kwargs)

    with serve(folder, continuous_batching=continuous_batching) as server:
        monkeypatch.setattr(type(model), "forward", fails_third)
        if stream:
            answer = server.stream(CHAT, chat())
            assert answer.status == 200
            assert "boom" in answer.data[-1]
        else:
            assert server.post(CHAT, chat()).status_code in (500, 503)
        request = recorded.one()
        monkeypatch.undo()
    assert (request.state.outcome, request.state.error_type) == ("error", "ArithmeticError")
    assert request.state.http_status == (200 if stream else request.state.http_status)
    assert request[OUTPUT] == 2
    assert len(request.token_times) == 2
    assert (request.state.first_chunk_ns is not None) is stream
    request.check_boundaries(GAP_MS)


def test_model_names_that_clients_make_up_do_not_fill_the_ring(recorded: Recorded) -> None:
    """Every request keeps the name it asked for, but only a few become names that the ring registers."""
    names = [f"model-{number}" for number in range(100)] + ["x" * 230]
    for name in names:
        request = begin_request("POST", now_ns())
        asked.describe(request, name, stream=True)
        request.end(now_ns())
    traced = recorded.wait(len(names))
    assert [request[attr.GEN_AI_MODEL] for request in traced] == names
    assert all(request[attr.GEN_AI_STREAM] is True for request in traced)
    assert len(asked._models) <= asked.MAX_MODELS
