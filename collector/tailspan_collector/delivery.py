"""Stores one batch whatever it takes: tries again what may pass, divides what may not, keeps apart what cannot.

    TransientError   the target cannot take data now: the same insert again, until it works
    DataError        the bytes cannot be decoded: see below
    TooLargeError    the target has not the memory for so much at once: again a few times, then as a DataError
    UnclearError     again a few times, then as a DataError

Before anything is divided the target is asked for an empty insert. If it refuses that too, the fault is its own (a
missing grant, table or column) and never that of the data: the same insert again, until it works.

A batch that cannot be decoded is divided into what is plain protobuf of the schema, stored at once as a rule, what is
odd, and what is no protobuf at all, which is kept as rejects without another try (`decoding`). What still fails is
halved until the request is found, O(log n) inserts each.

Exactly once: these errors are raised before ClickHouse commits the block of an insert, to the table or to a rollup, so
the halves get tokens of their own. A halving that a crash interrupts is gone through again with the same tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from tailspan_collector.decoding import Decoder, Verdict
from tailspan_collector.errors import DataError, InsertError, TooLargeError, TransientError, UnclearError
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import Signal
from tailspan_collector.sink import Body, Reject, Sink
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
_REJECTS_AT_ONCE_BYTES = 16 * 1024 * 1024
_EMPTY = b"\x00"
"""A `Protobuf` stream of one empty message: asks everything of the target that an insert does, and stores nothing."""


class Stopped(Exception):  # noqa: N818 (control flow)
    """The writer was told to stop while it waited for the target."""


class Delivery:
    """Inserts of one signal; for any number of threads."""

    def __init__(self, signal: Signal, sink: Sink, stop: threading.Event, metrics: Metrics) -> None:
        self._signal, self._sink, self._stop = signal, sink, stop
        self._decoder = Decoder(signal.proto_file, signal.proto_message)
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

    def _store(self, batch: Batch, requests: Sequence[Record], token: str, tries: int, is_sorted: bool = False) -> None:
        body: Body = batch.body if len(requests) == len(batch.records) else b"".join(map(batch.message, requests))
        try:
            self._retry(lambda: self._insert(body, token), tries if len(requests) > 1 else max(tries, _TRIES_OF_ONE))
        except DataError as error:
            if len(requests) == 1:
                self._reject(batch, requests, token, error)
            elif is_sorted:
                self._store_halves(batch, requests, token)
            else:
                self._store_sorted(batch, requests, token, error)
        else:
            self._written.inc(len(requests))
            self._written_bytes.inc(len(body))

    def _store_sorted(self, batch: Batch, requests: Sequence[Record], token: str, error: DataError) -> None:
        kinds: dict[Verdict, list[Record]] = {verdict: [] for verdict in Verdict}
        for record in requests:
            kinds[self._decoder.judge(batch.received(record).payload)[0]].append(record)
        for verdict in (Verdict.PLAIN, Verdict.ODD):
            if len(kinds[verdict]) == len(requests):
                self._store_halves(batch, requests, token)
            elif kinds[verdict]:
                name = verdict.name.lower()
                self._store(batch, kinds[verdict], f"{token}.{name}", _TRIES_OF_A_PART, is_sorted=True)
        if kinds[Verdict.BROKEN]:
            reason = f"{Verdict.BROKEN.value}; of the insert with it: {error.reason}"
            self._reject(batch, kinds[Verdict.BROKEN], f"{token}.broken", DataError(error.code, reason))

    def _store_halves(self, batch: Batch, requests: Sequence[Record], token: str) -> None:
        middle = len(requests) // 2
        for number, half in enumerate((requests[:middle], requests[middle:])):
            self._store(batch, half, f"{token}.{number}", _TRIES_OF_A_PART, is_sorted=True)

    def _insert(self, body: Body, token: str) -> None:
        begin = time.perf_counter()
        self._sink.insert(self._signal, body, token)
        self._insert_seconds.observe(time.perf_counter() - begin)
        self._batch_bytes.observe(len(body))
        self._stored.inc()

    def _reject(self, batch: Batch, records: Sequence[Record], token: str, error: InsertError) -> None:
        """Keep requests as rejects, many at once."""
        count = "a request" if len(records) == 1 else f"{len(records)} requests"
        _LOG.error("%s cannot be stored: kept in tailspan.rejects: %.300s", count, error)
        rejects: list[Reject] = []
        size = 0
        for number, record in enumerate(records):
            part = token if number == 0 else f"{token}.{number}"
            rejects.append(Reject(self._signal, batch.received(record), error.code, error.reason, part))
            size += len(rejects[-1].request.payload)  # nothing else: after a crash the parts must be the same
            if size >= _REJECTS_AT_ONCE_BYTES or number == len(records) - 1:
                self._keep(rejects)
                rejects, size = [], 0

    def _keep(self, rejects: list[Reject]) -> None:
        self._retry(lambda: self._sink.reject(*rejects), None)
        self._rejected.inc(len(rejects))

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
