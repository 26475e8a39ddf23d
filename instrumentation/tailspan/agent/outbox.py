"""Spans on their way out: a bounded queue and one thread that exports batches, in order, until each is acknowledged.

In: spans, which wait in the form that the exporter takes: encoded once, for OTLP.
Errors: a batch that the exporter gives up on is tried again after a pause; nothing is dropped while the queue has room.
When it is full the newest spans are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from opentelemetry.sdk.trace.export import SpanExportResult

from tailspan.agent.reporting import ReportingSpanExporter
from tailspan.agent.span import Span

logger = logging.getLogger("tailspan.agent")

BATCH_SPANS = 2048
QUEUE_SPANS = 200_000
"""Most spans held in memory: about 70 MB of encoded spans, 180 MB of the SDK's for an exporter that takes those."""
FLUSH_S = 0.5
RETRY_S = (0.5, 1.0, 2.0, 5.0)


class Outbox:
    """Exports to one destination."""

    def __init__(self, exporter: ReportingSpanExporter) -> None:
        """Start the exporting thread."""
        self.exporter = exporter
        self.exported = 0
        self.dropped = 0
        self._queue: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="tailspan-export", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """Queue spans in the form that the exporter takes; never blocks."""
        # Only this thread adds, so the room can but grow meanwhile.
        room = max(0, QUEUE_SPANS - len(self._queue))
        prepared = list(map(self.exporter.prepare, spans[:room]))
        with self._changed:
            self._queue.extend(prepared)
            self.dropped += len(spans) - len(prepared)
            if len(self._queue) >= BATCH_SPANS:
                self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Export what is queued; return whether everything was acknowledged before the time was up."""
        with self._changed:
            self._closing = True
            self._give_up_at = time.monotonic() + timeout_s
            self._changed.notify()
        self._thread.join(timeout_s + 1)
        delivered = not self._thread.is_alive() and not self._queue and not self.dropped
        self.exporter.shutdown()
        return delivered

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or len(self._queue) >= BATCH_SPANS, FLUSH_S)
                batch = list(islice(self._queue, BATCH_SPANS))
                if not batch:
                    if self._closing:
                        return
                    continue
            delivered = self._deliver(batch)
            if not delivered and not self.exporter.refused:
                return
            with self._changed:
                for _ in batch:
                    self._queue.popleft()
                if delivered:
                    self.exported += len(batch)
                else:
                    self.dropped += len(batch)

    def _deliver(self, batch: list[Any]) -> bool:
        """Return whether the batch was taken; False when it was refused for good, or the time is up."""
        for attempt in range(1 << 30):
            try:
                if self.exporter.export(batch) is SpanExportResult.SUCCESS:
                    return True
            except Exception:
                logger.exception("the span exporter failed")
            if self.exporter.refused:
                return False
            pause_s = RETRY_S[min(attempt, len(RETRY_S) - 1)]
            with self._changed:
                if self._give_up_at is not None and time.monotonic() + pause_s > self._give_up_at:
                    return False
                self._changed.wait_for(lambda: self._closing, pause_s)
            if self._closing:
                time.sleep(min(pause_s, 0.5))
        return False
