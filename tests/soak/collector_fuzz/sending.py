"""Sends requests fast: many HTTP/1.1 connections and one gRPC channel, from one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc
import grpc.aio

from tests.conformance.signals import Signal

TIMEOUT_S = 60.0
_CHANNELS = 6
_WAIT_S = 0.2


@dataclass(slots=True)
class Shot:
    """One request: what is sent, how, and whether it was acknowledged."""

    signal: Signal
    body: bytes
    form: str
    """`grpc`, `http/protobuf` or `http/json`."""
    is_neighbour: bool
    mutation: str = ""
    code: int | str = 0

    @property
    def acknowledged(self) -> bool:
        """Whether it was accepted."""
        return self.code in (200, "OK")


class Hang(AssertionError):  # noqa: N818 (what the test is about)
    """A request got no answer."""


async def send_all(shots: Iterator[Shot], grpc_port: int, http_port: int, done: Counter[str]) -> None:
    """Send all shots; `done` counts answers by form and code.

    Raises:
        Hang: an answer did not come in a minute.
        ConnectionError: the collector closed a connection without answer.
    """
    async with AsyncExitStack() as channels:
        workers = []
        for _ in range(_CHANNELS):
            opened = grpc.aio.insecure_channel(
                f"127.0.0.1:{grpc_port}", [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
            )
            channel = await channels.enter_async_context(opened)
            # The collector takes 32 calls at once on a connection.
            workers += [_Worker(shots, channel, http_port, done).run() for _ in range(32)]
        await asyncio.gather(*workers)


class _Worker:
    def __init__(self, shots: Iterator[Shot], channel: grpc.aio.Channel, port: int, done: Counter[str]) -> None:
        self._shots, self._channel, self._port, self._done = shots, channel, port, done
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        for shot in self._shots:
            while True:
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        shot.code = await (self._grpc(shot) if shot.form == "grpc" else self._http(shot))
                except TimeoutError:
                    raise Hang(f"no answer to {shot.mutation}: {shot.body[:200].hex()}") from None
                self._done[f"{shot.form} {shot.code}"] += 1
                if shot.code not in (429, 503, "UNAVAILABLE"):
                    break
                await asyncio.sleep(_WAIT_S)
        if self._writer is not None:
            self._writer.close()

    async def _grpc(self, shot: Shot) -> str:
        try:
            await self._channel.unary_unary(shot.signal.method)(shot.body)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"

    async def _http(self, shot: Shot) -> int:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        kind = "json" if shot.form == "http/json" else "x-protobuf"
        head = f"POST {shot.signal.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/{kind}\r\n"
        self._writer.write(f"{head}Content-Length: {len(shot.body)}\r\n\r\n".encode() + shot.body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, _, rest = answer.partition(b"content-length: ")
        await self._reader.readexactly(int(rest.partition(b"\r")[0] or 0))
        if b"connection: close" in answer:
            self._writer.close()
            self._reader = self._writer = None
        return int(answer[9:12])
