"""The ASGI layer alone, driven with plain messages."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from tailspan import asgi
from tailspan.asgi_arrival import arrival_ns
from tailspan.recorder import current_request, now_ns
from tests.engines.recorded import INPUT, MODEL, OUTPUT, Recorded


def scope(path: str = "/v1/completions", method: str = "POST") -> dict[str, Any]:
    """An HTTP scope as a server builds it."""
    return {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http",
        "query_string": b"", "headers": [(b"Host", b"test")], "http_version": "1.1", "client": None,
        "server": ("test", 80), "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip


class Peer:
    """Sends a body in pieces, then is silent or leaves."""

    def __init__(self, *bodies: bytes, leaves: bool = False) -> None:
        """`leaves`: disconnect after the last piece."""
        self.messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": body, "more_body": number < len(bodies) - 1}
            for number, body in enumerate(bodies)
        ]
        self.leaves = leaves
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        if self.messages:
            return self.messages.pop(0)
        if not self.leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Take a message of the answer."""
        self.sent.append(message)


async def answer(request: Request) -> Response:
    """Read the body, then answer as if an engine had worked."""
    await request.body()
    running = current_request.get()
    assert running is not None
    running.has_output = True
    return JSONResponse({"text": "hello"})


async def stream_forever(request: Request) -> Response:
    """Send until the client leaves."""

    async def chunks() -> Any:
        while True:
            yield b"data: x\n\n"
            await asyncio.sleep(0)

    return StreamingResponse(chunks())


async def fail(request: Request) -> Response:
    """Raise."""
    raise ArithmeticError("boom")


async def test_a_body_in_pieces_is_received_when_the_last_has_come(recorded: Recorded) -> None:
    """Without a hook in the endpoint, receive ends with the body."""
    peer = Peer(b"{", b"}")
    await Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])(scope(), peer.receive, peer.send)
    request = recorded.one()
    assert request.state.outcome == "ok"
    assert request.stage_names == ["receive", "respond"]
    assert request.gap_ns == 0
    assert request.state.first_chunk_ns is not None


async def test_a_request_begins_when_the_server_had_its_headers(recorded: Recorded) -> None:
    """The time that a request waits for a busy event loop belongs to it."""
    cycle = Peer(b"{}")
    asgi._cycle(lambda: None, cycle, (), {})
    arrived_ns = now_ns()
    await asyncio.sleep(0.05)
    app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
    await app(scope(), cycle.receive, cycle.send)
    request = recorded.one()
    assert request.begin_ns <= arrived_ns
    assert request.end_ns - request.begin_ns >= 50e6


def test_data_that_nobody_reads_has_arrived() -> None:
    """The arrival is found to one or two ticks of the kernel (4 ms each here) however long the bytes wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        connection, _ = listener.accept()
        with connection:
            transport = SimpleNamespace(get_extra_info={"socket": connection}.get)
            for waits_s in (0.0, 0.03, 0.2):
                before_ns = now_ns()
                client.sendall(b"POST")
                after_ns = now_ns()
                time.sleep(waits_s)
                assert before_ns - 6e6 <= arrival_ns(transport) <= after_ns + 12e6
                connection.recv(16)


@pytest.mark.parametrize("transport", [None, SimpleNamespace(get_extra_info=lambda _: None)])
def test_without_a_socket_the_arrival_is_now(transport: Any) -> None:
    """Any other transport gives the time of the call."""
    before_ns = now_ns()
    assert before_ns - 1e6 <= arrival_ns(transport) <= now_ns()


async def test_a_users_own_application(recorded: Recorded, model: Any, tokenizer: Any) -> None:
    """An endpoint of any FastAPI application that calls tokenizer and model in a worker thread has all their stages."""
    app = FastAPI()

    @app.post("/generate")
    def generate(body: dict[str, str]) -> dict[str, str]:
        inputs = tokenizer(body["text"], return_tensors="pt")
        return {"text": tokenizer.decode(model.generate(**inputs, max_new_tokens=4)[0])}

    peer = Peer(b'{"text": ', b'"abc"}')
    request_scope = scope("/generate")
    request_scope["headers"].append((b"content-type", b"application/json"))
    await app(request_scope, peer.receive, peer.send)
    assert peer.sent[0]["status"] == 200
    request = recorded.one()
    assert request.stage_names == ["receive", "tokenize", "dispatch", "prefill", "decode", "detokenize", "respond"]
    assert (request[INPUT], request[OUTPUT]) == (3, 4)
    assert request[MODEL] == "LlamaForCausalLM"
    assert request.state.first_chunk_ns is not None
    request.check_boundaries(gap_ms=50)


async def test_nested_applications_are_one_request(recorded: Recorded) -> None:
    """A FastAPI application that is mounted in another one does not begin a second request; the prefix is no matter."""
    inner = FastAPI()
    inner.add_route("/v1/completions", answer, methods=["POST"])
    outer = Starlette(routes=[Mount("/models/a", app=inner)])
    peer = Peer(b"{}")
    await outer(scope("/models/a/v1/completions"), peer.receive, peer.send)
    assert peer.sent[0]["status"] == 200
    assert recorded.one().state.name == "POST /v1/completions"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([], "tailspan=1"),
        ([(b"TraceState", b"a=1")], "tailspan=1,a=1"),
        ([(b"tracestate", b"a=1,b=2"), (b"tracestate", b"c=3")], "tailspan=1,a=1,b=2,c=3"),
    ],
)
async def test_the_engines_own_tracing_continues_ours(
    recorded: Recorded, sent: list[tuple[bytes, bytes]], expected: str
) -> None:
    """The application sees our span as its parent, marked in tracestate, in the caller's trace; other headers stay."""
    seen: list[tuple[bytes, bytes]] = []

    async def remember(request: Request) -> Response:
        seen.extend(request.headers.raw)
        return Response("{}")

    caller = (b"Traceparent", b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
    request_scope = scope() | {"headers": [(b"host", b"test"), caller, *sent]}
    peer = Peer(b"{}")
    await Starlette(routes=[Route("/v1/completions", remember, methods=["POST"])])(
        request_scope, peer.receive, peer.send
    )
    state = recorded.one().state
    parent = f"00-0123456789abcdef0123456789abcdef-{state.key:016x}-01"
    assert dict(seen) == {b"host": b"test", b"traceparent": parent.encode(), b"tracestate": expected.encode()}
    assert len(seen) == 3
    assert state.parent_id == 0x0123456789ABCDEF


async def test_a_disconnect_is_seen_in_receive(recorded: Recorded) -> None:
    """A server that announces the disconnect ends the stream, and the request as client_disconnect."""
    peer = Peer(b"{}", leaves=True)
    app = Starlette(routes=[Route("/v1/completions", stream_forever, methods=["POST"])])
    await app(scope(), peer.receive, peer.send)
    assert recorded.one().state.outcome == "client_disconnect"


async def test_an_exception_passes_through(recorded: Recorded) -> None:
    """The server sees the very exception; the request is an error of its class with status 500."""
    peer = Peer(b"{}")
    with pytest.raises(ArithmeticError):
        await Starlette(routes=[Route("/v1/completions", fail, methods=["POST"])])(scope(), peer.receive, peer.send)
    state = recorded.one().state
    assert (state.outcome, state.error_type, state.http_status) == ("error", "ArithmeticError", 500)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (b'data: {"error": {"message": "Internal server error"}}\n\n', "error"),
        (b'data: {"object":"error","message":"x"}\n\n', "error"),
        (b'data: {"choices":[{"delta":{"content":"data: {\\"error\\":"}}]}\n\n', "ok"),
    ],
)
async def test_an_error_inside_a_stream(event: bytes, outcome: str, recorded: Recorded) -> None:
    """A stream whose status was 200 and that then tells an error has failed; text that only looks like one has not."""

    async def stream(request: Request) -> Response:
        await request.body()

        async def events() -> Any:
            yield b'data: {"choices":[]}\n\n'
            yield event
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    application = Starlette(routes=[Route("/v1/completions", stream, methods=["POST"])])
    await application(scope(), Peer(b"{}").receive, Peer().send)
    (traced,) = recorded.wait(1)
    assert (traced.state.outcome, traced.state.http_status) == (outcome, 200)


async def test_a_server_that_stops_cancels(recorded: Recorded) -> None:
    """A cancelled task leaves a request that says so."""
    peer = Peer(b"{}")

    async def wait(request: Request) -> Response:
        await asyncio.sleep(60)
        return Response()

    app = Starlette(routes=[Route("/v1/completions", wait, methods=["POST"])])
    task = asyncio.create_task(app(scope(), peer.receive, peer.send))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorded.one().state.outcome == "cancelled"


async def test_nothing_is_kept_of_ended_requests(recorded: Recorded) -> None:
    """The table of exchanges in flight is empty again, and the context is as before."""
    app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
    for _ in range(3):
        peer = Peer(b"{}")
        await app(scope(), peer.receive, peer.send)
    recorded.wait(3)
    assert not asgi._exchanges
    assert current_request.get() is None


@pytest.mark.parametrize(
    ("path", "method", "route"),
    [
        ("/v1/chat/completions", "POST", "/v1/chat/completions"),
        ("/proxy/v1/chat/completions", "POST", "/v1/chat/completions"),
        ("/v1/chat/completions", "GET", None),
        ("/v1/models", "POST", None),
        ("/health", "GET", None),
    ],
)
def test_which_routes_are_requests(path: str, method: str, route: str | None) -> None:
    """POST to an inference route, under any prefix."""
    assert asgi.route_of(scope(path, method)) == route


def test_a_websocket_or_lifespan_is_not_a_request() -> None:
    """Only HTTP scopes are looked at."""
    assert asgi.route_of({"type": "lifespan"}) is None
