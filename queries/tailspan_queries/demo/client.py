"""An HTTP client whose only purpose is an honest clock.

In:     a planned request and its trace context.
Out:    an `Observation`: when bytes left and arrived by this process's monotonic clock.
Units:  nanoseconds since the request was handed to the socket; `connect_ns` is the TCP handshake, one network round
        trip that needs nothing from the server's program.
Errors: none are raised for a request: what went wrong is in `Observation.error`.

Why not an HTTP library: the time of a byte is taken first thing in `data_received`, before anything is parsed. A
library stamps it after its own buffers, locks and task switches, which cost up to milliseconds on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import cast

import h11

from tailspan.ids import format_traceparent, new_span_id, new_trace_id
from tailspan_queries.demo.workload import PlannedRequest

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a model is served."""

    host: str
    port: int
    model: str


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The client's own span, which the server's request span shall name as its parent."""

    trace_id: int
    span_id: int
    sampled: bool

    @classmethod
    def new(cls, sampled: bool) -> TraceContext:
        """Return a context with random ids."""
        return cls(new_trace_id(), new_span_id(), sampled)

    @property
    def traceparent(self) -> str:
        """The W3C header."""
        return format_traceparent(self.trace_id, self.span_id, int(self.sampled))


@dataclass(frozen=True, slots=True)
class Observation:
    """What the client saw of one request; times are nanoseconds after `sent_unix_ns`, -1 where it never happened."""

    number: int
    trace_id: str
    parent_span_id: str
    stream: bool
    sent_unix_ns: int
    late_ns: int
    connect_ns: int
    first_byte_ns: int
    first_content_ns: int
    last_byte_ns: int
    http_status: int
    prompt_tokens: int
    output_tokens: int
    error: str


class Exchange(asyncio.Protocol):
    """One request and its response on a connection of its own."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.http = h11.Connection(h11.CLIENT)
        self.status = 0
        self.sent = self.first_byte = self.first_content = self.last_byte = 0
        self.body = bytearray()
        self.scanned = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; nothing is sent yet."""
        self.transport = cast("asyncio.Transport", transport)

    def send(self, headers: list[tuple[str, str]], body: bytes) -> None:
        """Start the clock and hand the whole request to the socket."""
        request = h11.Request(method="POST", target="/v1/chat/completions", headers=headers)
        parts = [self.http.send(request), self.http.send(h11.Data(data=body)), self.http.send(h11.EndOfMessage())]
        if self.transport is None:
            raise ConnectionError("not connected")
        message = b"".join(part for part in parts if part)
        self.sent = time.monotonic_ns()
        self.transport.write(message)

    def data_received(self, data: bytes) -> None:
        """Stamp the bytes, then look at what they are."""
        now = time.monotonic_ns()
        self.http.receive_data(data)
        try:
            self._read_events(now)
        except h11.RemoteProtocolError as error:
            self._finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange; closed too early is an error."""
        self._finish(exc or ConnectionError("the server closed the connection before the end of its answer"))

    def _read_events(self, now: int) -> None:
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Response):
                self.status = event.status_code
            elif isinstance(event, h11.Data):
                self.first_byte = self.first_byte or now
                self.body += event.data
                if not self.first_content and self._content_arrived():
                    self.first_content = now
            elif isinstance(event, h11.EndOfMessage):
                self.last_byte = now
                self._finish(None)
                return
            elif isinstance(event, h11.ConnectionClosed):
                return

    def _content_arrived(self) -> bool:
        """Return whether a complete server-sent event with text has arrived; each byte is looked at once."""
        while (end := self.body.find(b"\n\n", self.scanned)) >= 0:
            event, self.scanned = bytes(self.body[self.scanned : end]), end + 2
            if _delta_text(event):
                return True
        return False

    def _finish(self, error: BaseException | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


async def exchange(target: Target, plan: PlannedRequest, context: TraceContext, late_ns: int) -> Observation:
    """Send one request and return what the client's clock saw of it."""
    loop = asyncio.get_running_loop()
    state = Exchange(loop.create_future())
    body = request_body(target.model, plan)
    headers = request_headers(target, len(body), context.traceparent)
    error, sent_unix, connect = "", 0, -1
    try:
        begin = time.monotonic_ns()
        await loop.create_connection(lambda: state, target.host, target.port)
        connect = time.monotonic_ns() - begin
        sent_unix = time.time_ns()
        state.send(headers, body)
        await asyncio.wait_for(state.done, TIMEOUT_S)
    except (OSError, TimeoutError, h11.ProtocolError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    finally:
        if state.transport is not None:
            state.transport.close()
    usage = read_usage(bytes(state.body), plan.stream)
    if not error and state.status != 200:
        error = f"HTTP {state.status}: {bytes(state.body[:200])!r}"
    return Observation(
        number=plan.number,
        trace_id=f"{context.trace_id:032x}",
        parent_span_id=f"{context.span_id:016x}",
        stream=plan.stream,
        sent_unix_ns=sent_unix,
        late_ns=late_ns,
        connect_ns=connect,
        first_byte_ns=_since(state.sent, state.first_byte),
        first_content_ns=_since(state.sent, state.first_content if plan.stream else state.first_byte),
        last_byte_ns=_since(state.sent, state.last_byte),
        http_status=state.status,
        prompt_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        error=error,
    )


def request_body(model: str, plan: PlannedRequest) -> bytes:
    """Return the JSON body of a chat completion."""
    message = {"role": "user", "content": plan.prompt}
    return json.dumps(
        {"model": model, "messages": [message], "max_tokens": plan.max_tokens, "stream": plan.stream}
    ).encode()


def request_headers(target: Target, length: int, traceparent: str) -> list[tuple[str, str]]:
    """Return the headers of a request that carries a W3C trace context and closes its connection."""
    return [
        ("Host", f"{target.host}:{target.port}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(length)),
        ("Connection", "close"),
        ("traceparent", traceparent),
    ]


def read_usage(body: bytes, stream: bool) -> dict[str, int]:
    """Return the token counts that the server put into its answer, or nothing."""
    documents = [line[5:] for line in body.split(b"\n") if line.startswith(b"data:")] if stream else [body]
    for document in reversed(documents):
        try:
            usage = json.loads(document).get("usage")
        except (ValueError, AttributeError):
            continue
        if usage:
            return {key: int(value) for key, value in usage.items() if isinstance(value, int)}
    return {}


def _delta_text(event: bytes) -> str:
    if not event.startswith(b"data:"):
        return ""
    try:
        choices = json.loads(event[5:])["choices"]
        return str(choices[0]["delta"].get("content") or "")
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


def _since(start: int, moment: int) -> int:
    return moment - start if start and moment else -1
