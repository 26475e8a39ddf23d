"""How many bodies gRPC receives at once, and for how long: senders that are slow cannot keep the others out.

A body has its time while there is room. As soon as another waits, the one that has been coming for longest gives way
once it has had a second. Units: seconds. Used in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tailspan_collector.receivers.refusals import Slow

_LEAST_S = 1.0
T = TypeVar("T")


class Bodies:
    """The bodies that are being received."""

    def __init__(self, most: int, slow_seconds: float) -> None:
        self._places = asyncio.Semaphore(most)
        self._slow_seconds = slow_seconds
        self._unhurried: dict[asyncio.Timeout, float] = {}
        """Time limits of those under way, oldest first, with the time when each began."""

    async def receive(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read a body, which holds a place meanwhile.

        Raises:
            Slow: it did not come in time.
        """
        try:
            async with asyncio.timeout(self._slow_seconds) as limit:
                if self._places.locked():
                    self._hurry_oldest()
                async with self._places:
                    self._unhurried[limit] = asyncio.get_running_loop().time()
                    try:
                        return await read()
                    finally:
                        self._unhurried.pop(limit, None)
        except TimeoutError:
            raise Slow(f"the request did not come in time, {self._slow_seconds:g} seconds at most") from None

    def _hurry_oldest(self) -> None:
        for limit, began in self._unhurried.items():
            when = limit.when()
            if when is not None and not limit.expired():
                limit.reschedule(min(when, began + _LEAST_S))
            del self._unhurried[limit]
            return
