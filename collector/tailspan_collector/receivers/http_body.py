"""The body of one HTTP request: read within a time and a size, in memory only while there is room.

Units: bytes, seconds. Errors: `TooLarge`, `Slow`, `Busy`, `Lost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from tailspan_collector.receivers.refusals import Refusal, Slow, TooLarge
from tailspan_collector.receivers.workers import Room


class Lost(Refusal):
    """The sender has closed the connection; nobody reads the answer, it is only counted."""

    code = grpc.StatusCode.CANCELLED
    http_status = 499


class Body:
    """The body of one request."""

    def __init__(
        self, headers: Mapping[bytes, bytes], receive: Callable[[], Any], limit: int, slow_seconds: float, room: Room
    ) -> None:
        self._announced = int(headers.get(b"content-length", b"0"))
        self._waits_for_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self._receive = receive
        self._limit, self._slow_seconds, self._room = limit, slow_seconds, room
        self._deadline = asyncio.get_running_loop().time() + slow_seconds
        self._held = 0
        self._seen = 0
        self._is_complete = False

    async def read(self) -> bytes:
        """Return the whole body; the room it takes is held until `release`, which must be called in any case.

        Raises:
            Refusal: it is too large, too slow, or there is no room.
        """
        if self._announced > self._limit:
            raise TooLarge(f"the request is larger than {self._limit} bytes")
        pieces: list[bytes] = []
        while not self._is_complete:
            piece = await self._next()
            if self._seen > self._limit:
                raise TooLarge(f"the request is larger than {self._limit} bytes")
            self._room.take(len(piece))
            self._held += len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    async def drain(self) -> bool:
        """Throw away what was not read; return whether the connection can be used further."""
        if self._waits_for_continue and not self._seen:
            return self._is_complete
        try:
            while not self._is_complete and self._seen <= self._limit:
                await self._next()
        except (Slow, Lost):
            return False
        return self._is_complete

    def release(self) -> None:
        """Give back the room."""
        self._room.give_back(self._held)
        self._held = 0

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Slow(f"the request did not come within {self._slow_seconds:g} seconds") from None
        if message["type"] == "http.disconnect":
            raise Lost("the sender has closed the connection")
        piece: bytes = message["body"]
        self._seen += len(piece)
        self._is_complete = not message.get("more_body", False)
        return piece
