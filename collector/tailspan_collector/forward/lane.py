"""Moves one signal from its spool to one destination, the same bytes, from a cursor of its own.

A chunk is committed once all of it was taken or given up, so that a crash sends at most a chunk twice and loses
nothing: delivery is at least once.
"""

from __future__ import annotations

import logging
import threading
import time

from tailspan_collector.forward.courier import Courier
from tailspan_collector.forward.destination import Destination
from tailspan_collector.forward.window import Item, Window
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import Signal
from tailspan_collector.spool.interfaces import Chunk, Cursor, Received

_LOG = logging.getLogger(__name__)
CHUNK_BYTES = 4 << 20
_MOST_AHEAD_BYTES = 16 << 20
_LOOK_AHEAD_S = 2.0
_IDLE_S = 0.5
_CLOSING_S = 0.05  # a spool that closes does not wait


class Lane:
    """One thread from a cursor to a courier."""

    def __init__(
        self, destination: Destination, signal: Signal, cursor: Cursor, courier: Courier, metrics: Metrics
    ) -> None:
        self._name, self._cursor, self._courier = destination.name, cursor, courier
        self._skipped = 0
        self._looked_ahead = 0.0
        self._chunk: Chunk | None = None
        self._stopping = threading.Event()
        metrics.forward_lag_bytes.labels(destination.name, signal.name).set_function(lambda: cursor.behind_bytes)
        self._thread = threading.Thread(target=self._run, name=f"forward-{destination.name}-{signal.name}", daemon=True)

    def start(self) -> None:
        """Begin to forward."""
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Begin to stop: what is left is sent for so long, as long as the destination takes it."""
        self._courier.stop(grace_s)
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, then close the connections."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._courier.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                if not self._forward_chunk() and self._stopping.is_set():
                    return
            except Exception:
                _LOG.exception("forwarding to %s failed in an unforeseen way, trying again", self._name)
                if self._stopping.wait(5.0):
                    return

    def _forward_chunk(self) -> bool:
        """Return whether a chunk was forwarded; False also if there was none."""
        if not self._stopping.is_set() and not self._cursor.wait(_IDLE_S):
            self._stopping.wait(_CLOSING_S)
        chunk = self._chunk = self._cursor.next(CHUNK_BYTES)
        self._count_skipped()
        if chunk is None:
            return False
        window = Window(map(_item, chunk.requests))
        is_done = self._courier.deliver(window, self._look_ahead)
        self._commit(self._chunk if is_done else self._done_part(window))
        return is_done

    def _commit(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            self._cursor.commit(chunk)

    def _done_part(self, window: Window) -> Chunk | None:
        """Return the part of the chunk before the first request that is not done, so that it is not sent again."""
        done = self._chunk.requests[: window.done_prefix] if self._chunk is not None else ()
        part = self._cursor.next(sum(len(request.payload) for request in done)) if done else None
        return part if part is not None and part.requests == done[: len(part.requests)] else None

    def _look_ahead(self, window: Window) -> None:
        """Widen the chunk by what follows it."""
        now, size = time.monotonic(), sum(len(item.payload) for item in window.items)
        if self._chunk is None or size >= _MOST_AHEAD_BYTES or now < self._looked_ahead + _LOOK_AHEAD_S:
            return
        self._looked_ahead = now
        more = self._cursor.next(CHUNK_BYTES, self._chunk.end)
        self._count_skipped()
        if more is not None:
            self._chunk = Chunk(self._chunk.requests + more.requests, more.end)
            window.extend(map(_item, more.requests))

    def _count_skipped(self) -> None:
        skipped = self._cursor.skipped_requests - self._skipped
        if skipped:
            self._skipped += skipped
            self._courier.lost("bound", "it was further behind than its bounds allow", skipped)


def _item(request: Received) -> Item:
    return Item(request.payload, request.received_ns)
