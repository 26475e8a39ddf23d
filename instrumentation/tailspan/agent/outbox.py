"""Spans on their way out: a bounded queue and one thread that exports batches, in order, until each is acknowledged.

Errors: a batch that the exporter gives up on is tried again after a pause; nothing is dropped while the queue has room.
When it is full the newest spans are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from tailspan.agent.reporting import ReportingSpanExporter

logger = logging.getLogger("tailspan.agent")

BATCH_SPANS = 2048
QUEUE_SPANS = 200_000
"""Most spans held in memory, about 300 MB in the worst case."""
FLUSH_S = 0.5
RETRY_S = (0.5, 1.0, 2.0, 5.0)


class Outbox:
    """Exports to one destination."""

    def __init__(self, exporter: ReportingSpanExporter) -> None:
        """Start the exporting thread."""
        self.exporter = exporter
        self.exported = 0
        self.dropped = 0
        self._queue: deque[ReadableSpan] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="tailspan-export", daemon=True)
        self._thread.start()

    def put(self, spans: Iterable[ReadableSpan]) -> None:
        """Queue spans; never blocks."""
        with self._changed:
            for span in spans:
                if len(self._queue) >= QUEUE_SPANS:
                    self.dropped += 1
                else:
                    self._queue.append(span)
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
                batch = [self._queue[i] for i in range(min(BATCH_SPANS, len(self._queue)))]
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

    def _deliver(self, batch: list[ReadableSpan]) -> bool:
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
