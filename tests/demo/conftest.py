"""Fixtures of the demo's tests: a small HTTP server with known delays, for the load client to be measured against."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import pytest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n%s\r\n\r\n"


@dataclass
class ChatServer:
    """Answers chat completions; `first_s` before the first content and `gap_s` before each later token."""

    first_s: float = 0.05
    gap_s: float = 0.02
    status: int = 200
    drop: bool = False
    seen: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, object]] = field(default_factory=list)
    port: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.suppress(ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.seen.append(headers)
            self.bodies.append(body)
            if self.status != 200:
                writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 4\r\n\r\nsad!" % self.status)
            elif body["stream"]:
                await self.stream(writer, body["max_tokens"])
            else:
                await self.whole(writer, body["max_tokens"])
            await writer.drain()
        writer.close()

    async def stream(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        """Send a chunk without text at once, then one chunk a token, then the usage."""
        writer.write(HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
        write = chunk_writer(writer)
        write({"choices": [{"delta": {"role": "assistant"}}]})
        for number in range(tokens):
            await asyncio.sleep(self.gap_s if number else self.first_s)
            if self.drop:
                return
            write({"choices": [{"delta": {"content": f"w{number} "}}]})
        write({"choices": [{"delta": {}}], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})
        writer.write(b"0\r\n\r\n")

    async def whole(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        """Send one JSON document after the time that all tokens take."""
        await asyncio.sleep(self.first_s + self.gap_s * (tokens - 1))
        if self.drop:
            return
        body = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}).encode()
        writer.write(HEAD % (b"application/json", b"Content-Length: %d" % len(body)) + body)


def chunk_writer(writer: asyncio.StreamWriter) -> Callable[[object], None]:
    """Return a function that sends an object as a server-sent event in a chunk of its own."""

    def write(event: object) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    return write


@contextlib.asynccontextmanager
async def serve_chat(**settings: object) -> AsyncIterator[ChatServer]:
    """Run a `ChatServer` on a free loopback port."""
    chat = ChatServer(**settings)  # type: ignore[arg-type]
    server = await asyncio.start_server(chat.handle, "127.0.0.1", 0)
    chat.port = server.sockets[0].getsockname()[1]
    async with server:
        yield chat


@pytest.fixture
def chat_server() -> Callable[..., AbstractAsyncContextManager[ChatServer]]:
    """Return a function that runs a `ChatServer` with the given delays as an `async with` block."""
    return serve_chat
