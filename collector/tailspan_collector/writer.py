"""Moves batches from the spool into ClickHouse, each exactly once, several at a time.

A batch is frozen (its range and so its token are on disk) before its first insert and committed after its last, so that
a batch that a crash interrupted is inserted again with the same token, which ClickHouse recognises.
A batch is inserted once half of `batch_bytes` waits, or the first of it waited `batch_seconds`; twice that while a
quarter of `batch_bytes` is there, as every insert has a cost of its own. It is never larger than `batch_bytes`.

Errors: `delivery` decides. A disk that cannot take the decision which batch is next delays the writer, as does a
ClickHouse that is away.
"""

from __future__ import annotations

import logging
import threading
import time

from tailspan_collector.delivery import Delivery, Stopped
from tailspan_collector.metrics import Metrics
from tailspan_collector.sink import Sink
from tailspan_collector.spool import Batch, Spool

_LOG = logging.getLogger(__name__)
_DISK_WAIT_S = 1.0
_LOOK_AGAIN_S = 0.05


class Writer:
    """As many threads as inserts in flight, from one spool to one sink."""

    def __init__(
        self,
        spool: Spool,
        sink: Sink,
        batch_bytes: int,
        batch_seconds: float,
        metrics: Metrics,
        inserts_in_flight: int = 2,
    ) -> None:
        self._spool = spool
        self._batch_bytes, self._batch_seconds = batch_bytes, batch_seconds
        self._draining = threading.Event()
        self._stop = threading.Event()
        self._delivery = Delivery(spool.signal, sink, self._stop, metrics)
        self._turn = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"writer-{spool.signal.name}-{number}", daemon=True)
            for number in range(inserts_in_flight)
        ]
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to store what is in the spool."""
        for thread in self._threads:
            thread.start()

    def drain(self, timeout: float) -> bool:
        """Store what is left without waiting for more, then stop; return whether the spool is empty.

        What could not be stored in `timeout` seconds stays in the spool for the next start. An insert that is under way
        then is abandoned: its batch comes again, and ClickHouse knows it by its token.
        """
        deadline = time.monotonic() + timeout
        self._draining.set()
        self._spool.wake()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stop.set()
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        return self._spool.unread_bytes() == 0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                batch = self._next_batch()
                if batch is not None:
                    self._delivery.store(batch)
                    self._spool.commit(batch)
                elif self._draining.is_set():
                    return
        except Stopped:
            _LOG.warning("stopped while ClickHouse did not take data; the rest stays in the spool")
        except BaseException as error:
            self.failure = error
            _LOG.exception("the writer failed; what was received stays in the spool")

    def _next_batch(self) -> Batch | None:
        with self._turn:
            if not self._draining.is_set():
                if not self._spool.wait_unfrozen(self._draining.is_set):
                    return None
                self._collect()
            try:
                return self._spool.freeze(self._batch_bytes)
            except OSError as error:
                _LOG.error("cannot save which batch is next: %s; next try in %.1f s", error, _DISK_WAIT_S)
                if self._stop.wait(_DISK_WAIT_S):
                    raise Stopped from error
                return None

    def _collect(self) -> None:
        begin = time.monotonic()
        while not self._draining.is_set():
            waiting = self._spool.unfrozen_bytes()
            patience = self._batch_seconds * (2 if waiting >= self._batch_bytes // 4 else 1)
            left = begin + patience - time.monotonic()
            if waiting >= self._batch_bytes // 2 or left <= 0:
                return
            # Not woken at every group commit, which would cost a switch of threads each.
            self._draining.wait(min(left, _LOOK_AGAIN_S))
