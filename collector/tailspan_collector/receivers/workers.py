"""The threads of one receiver, and the room in memory for the requests that they hold.

Units: bytes. Used from one event loop, so that counting needs no lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tailspan_collector.receivers.refusals import Busy

_WORKERS = 2  # decompressions and conversions at once: each may need twice the largest request
_RETRY_S = 1.0
T = TypeVar("T")


class Room:
    """How many bytes of requests may be in memory at once."""

    def __init__(self, most_bytes: int) -> None:
        self.free_bytes = most_bytes

    def take(self, size: int) -> None:
        """Take room for a request, or for more of it.

        Raises:
            Busy: there is none.
        """
        if size > self.free_bytes:
            raise Busy("too many bytes are being received", _RETRY_S)
        self.free_bytes -= size

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self.free_bytes += size


class Workers:
    """Runs blocking calls for coroutines; what a call holds is in memory until it ends, even if its sender is gone."""

    def __init__(self, name: str, room: Room) -> None:
        self._room = room
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix=f"{name}-work")

    async def work(self, size: int, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call that needs CPU and memory and holds `size` bytes; few of them at once.

        Raises:
            Busy: there is no room.
        """
        self._room.take(size)
        running = asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        running.add_done_callback(lambda _: self._room.give_back(size))
        return await asyncio.shield(running)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)
