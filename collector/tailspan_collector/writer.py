"""Moves batches from the spool into ClickHouse, each exactly once.

A batch is frozen (its range and so its token are on disk) before its first insert and committed after its last, so that
a batch that a crash interrupted is inserted again with the same token, which ClickHouse recognises.
Batches are as large as what arrived in `batch_seconds`, at most `batch_bytes`.

Errors: a transient one is retried until it passes; a request that ClickHouse cannot decode is isolated and kept in
`tailspan.rejects`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from tailspan_collector.errors import DataError, InsertError, TransientError, UnclearError
from tailspan_collector.framing import is_valid_traces_request
from tailspan_collector.sink import Sink
from tailspan_collector.spool import Batch, Spool

_LOG = logging.getLogger(__name__)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 10.0
_UNCLEAR_TRIES, _UNCLEAR_TRIES_OF_A_PART = 4, 2


def _parts(payloads: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Split a batch that cannot be decoded: off with the requests that are no valid protobuf, else in halves."""
    valid = [is_valid_traces_request(payload) for payload in payloads]
    if any(valid) and not all(valid):
        good = [payload for payload, is_valid in zip(payloads, valid, strict=True) if is_valid]
        return [good, *([payload] for payload, is_valid in zip(payloads, valid, strict=True) if not is_valid)]
    middle = len(payloads) // 2
    return [payloads[:middle], payloads[middle:]]


class _Stopped(Exception):  # noqa: N818 (control flow)
    """The writer was told to stop while it waited for the target."""


class Writer:
    """One thread from one spool to one sink."""

    def __init__(self, spool: Spool, sink: Sink, batch_bytes: int, batch_seconds: float) -> None:
        self._spool, self._sink = spool, sink
        self._batch_bytes, self._batch_seconds = batch_bytes, batch_seconds
        self._draining = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to store what is in the spool."""
        self._thread.start()

    def drain(self, timeout: float) -> bool:
        """Store what is left without waiting for more, then stop; return whether the spool is empty.

        What could not be stored in `timeout` seconds stays in the spool for the next start.
        """
        self._draining.set()
        self._thread.join(timeout)
        self._stop.set()
        self._thread.join()
        return self._spool.unread_bytes() == 0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if not self._next_batch() and self._draining.is_set():
                    return
        except _Stopped:
            _LOG.warning("stopped while ClickHouse did not take data; the rest stays in the spool")
        except BaseException as error:
            self.failure = error
            _LOG.exception("the writer failed; received spans stay in the spool")

    def _next_batch(self) -> bool:
        if not self._draining.is_set():
            if not self._spool.wait_unread(1, timeout=0.2):
                return False
            self._collect()
        batch = self._spool.freeze(self._batch_bytes)
        if batch is None:
            return False
        self._store_batch(batch)
        self._spool.commit(batch)
        return True

    def _collect(self) -> None:
        deadline = time.monotonic() + self._batch_seconds
        while not self._draining.is_set() and (left := deadline - time.monotonic()) > 0:
            self._spool.wait_unread(self._batch_bytes, min(left, 0.1))
            if self._spool.unread_bytes() >= self._batch_bytes:
                return

    def _store_batch(self, batch: Batch) -> None:
        started = time.monotonic()
        self._store(batch.payloads, batch.token)
        _LOG.debug("stored %s requests in %.3f s", len(batch.payloads), time.monotonic() - started)

    def _store(self, payloads: Sequence[bytes], token: str, tries: int = _UNCLEAR_TRIES) -> None:
        try:
            self._retry(lambda: self._sink.insert(payloads, token), tries)
        except DataError as error:
            if len(payloads) == 1:
                self._reject(payloads[0], token, error)
                return
            for number, part in enumerate(_parts(payloads)):
                self._store(part, f"{token}.{number}", _UNCLEAR_TRIES_OF_A_PART)

    def _reject(self, payload: bytes, token: str, error: DataError) -> None:
        _LOG.error("a request cannot be decoded and is kept in tailspan.rejects: %.300s", error)
        self._retry(lambda: self._sink.reject(payload, token, error), _UNCLEAR_TRIES)

    def _retry(self, attempt: Callable[[], None], unclear_tries: int) -> None:
        wait, unclear = _FIRST_WAIT_S, 0
        while True:
            try:
                return attempt()
            except DataError:
                raise
            except UnclearError as error:
                unclear += 1
                if unclear >= unclear_tries:
                    raise DataError(error.code, error.reason) from error
                self._pause(error, wait)
            except TransientError as error:
                self._pause(error, wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def _pause(self, error: InsertError, wait: float) -> None:
        _LOG.warning("ClickHouse does not take the batch, next try in %.1f s: %.300s", wait, error)
        if self._stop.wait(wait):
            raise _Stopped
