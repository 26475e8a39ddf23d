"""Stores one batch whatever it takes: tries again what may pass, divides what may not, keeps apart what cannot.

    TransientError   the target cannot take data now: the same insert again, until it works
    DataError        the bytes cannot be decoded: in halves until the request is found, O(log n) inserts each
    TooLargeError    the target has not the memory for so much at once: again a few times, then as a DataError
    UnclearError     again a few times, then as a DataError

Before anything is divided the target is asked for an empty insert. If it refuses that too, the fault is its own (a
missing grant, table or column) and never that of the data: the same insert again, until it works.

Exactly once: these errors are raised before ClickHouse commits the block of an insert, to the table or to a rollup, so
the halves get tokens of their own. A halving that a crash interrupts is gone through again with the same tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tailspan_collector.errors import DataError, InsertError, TooLargeError, TransientError, UnclearError
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import Signal
from tailspan_collector.sink import Reject, Sink
from tailspan_collector.spool import Batch
from tailspan_collector.spool.records import Record

_LOG = logging.getLogger(__name__)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 10.0
_TRIES, _TRIES_OF_A_PART, _TRIES_OF_ONE = 4, 2, 4
_OUTCOMES: dict[type[InsertError], str] = {
    TransientError: "transient",
    DataError: "data",
    TooLargeError: "too_large",
    UnclearError: "unclear",
}
_EMPTY = b"\x00"
"""A `Protobuf` stream of one empty message: asks everything of the target that an insert does, and stores nothing."""


class Stopped(Exception):  # noqa: N818 (control flow)
    """The writer was told to stop while it waited for the target."""


class Delivery:
    """Inserts of one signal; for any number of threads."""

    def __init__(self, signal: Signal, sink: Sink, stop: threading.Event, metrics: Metrics) -> None:
        self._signal, self._sink, self._stop = signal, sink, stop
        self._written = metrics.written.labels(signal.name)
        self._written_bytes = metrics.written_bytes.labels(signal.name)
        self._rejected = metrics.rejected.labels(signal.name)
        self._insert_seconds = metrics.insert_seconds.labels(signal.name)
        self._batch_bytes = metrics.batch_bytes.labels(signal.name)
        self._stored = metrics.inserts.labels(signal.name, "stored")
        self._failed = {kind: metrics.inserts.labels(signal.name, outcome) for kind, outcome in _OUTCOMES.items()}

    def store(self, batch: Batch) -> None:
        """Return once every request of a batch is stored, or kept as a reject.

        Raises:
            Stopped: told to stop before that.
        """
        self._store(batch, batch.records, batch.token, _TRIES)

    def _store(self, batch: Batch, requests: Sequence[Record], token: str, tries: int) -> None:
        body = batch.body if len(requests) == len(batch.records) else b"".join(map(batch.message, requests))
        try:
            self._retry(lambda: self._insert(body, token), tries if len(requests) > 1 else max(tries, _TRIES_OF_ONE))
        except DataError as error:
            if len(requests) == 1:
                self._reject(batch, requests[0], token, error)
                return
            for number, part in enumerate(self._parts(batch, requests)):
                self._store(batch, part, f"{token}.{number}", _TRIES_OF_A_PART)
        else:
            self._written.inc(len(requests))
            self._written_bytes.inc(len(body))

    def _insert(self, body: bytes, token: str) -> None:
        begin = time.perf_counter()
        self._sink.insert(self._signal, body, token)
        self._insert_seconds.observe(time.perf_counter() - begin)
        self._batch_bytes.observe(len(body))
        self._stored.inc()

    def _parts(self, batch: Batch, requests: Sequence[Record]) -> list[Sequence[Record]]:
        """Divide what failed: off with the requests that are no valid protobuf, else in halves."""
        valid = [self._is_valid(batch.received(record).payload) for record in requests]
        if any(valid) and not all(valid):
            good = [record for record, is_valid in zip(requests, valid, strict=True) if is_valid]
            return [good, *([record] for record, is_valid in zip(requests, valid, strict=True) if not is_valid)]
        middle = len(requests) // 2
        return [requests[:middle], requests[middle:]]

    def _is_valid(self, payload: bytes) -> bool:
        """Decode a request; stricter than ClickHouse, which takes strings that are not UTF-8."""
        try:
            self._signal.request.FromString(payload)
        except DecodeError:
            return False
        return True

    def _reject(self, batch: Batch, record: Record, token: str, error: InsertError) -> None:
        reject = Reject(self._signal, batch.received(record), error.code, error.reason, token)
        _LOG.error("a request cannot be stored and is kept in tailspan.rejects: %.300s", error)
        self._retry(lambda: self._sink.reject(reject), None)
        self._rejected.inc()

    def _retry(self, attempt: Callable[[], None], tries: int | None) -> None:
        """Try until it works, or (`tries` given) until the data are known to be at fault, which is raised."""
        wait, failures = _FIRST_WAIT_S, 0
        while True:
            try:
                return attempt()
            except InsertError as error:
                self._failed[type(error)].inc()
                if isinstance(error, (TooLargeError, UnclearError)):
                    failures += 1
                elif isinstance(error, DataError):
                    failures = tries or 0
                if tries is not None and failures >= tries and self._takes_anything():
                    raise DataError(error.code, error.reason) from error
                self._pause(error, wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def _takes_anything(self) -> bool:
        try:
            self._sink.insert(self._signal, _EMPTY, "")
        except InsertError:
            return False
        return True

    def _pause(self, error: InsertError, wait: float) -> None:
        _LOG.warning("ClickHouse does not take the batch, next try in %.1f s: %.300s", wait, error)
        if self._stop.wait(wait):
            raise Stopped
