"""The durable queue between receivers, the writer and every destination: acknowledged means on disk.

In: OTLP requests of one signal from many threads. Out: frozen batches for the writer, chunks for any number of cursors.
A request that a sender repeats, because the answer was lost, is recognised by all its bytes for at least
`RESEND_SECONDS` after it was stored, as long as no more than `RESEND_BYTES` came since.

Errors: `SpoolFull` asks the sender to come back later: too much or too old is what waits for ClickHouse, or the disk
is full.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import Signal
from tailspan_collector.spool import records
from tailspan_collector.spool.batches import Batch, Batches
from tailspan_collector.spool.cursor import SpoolCursor
from tailspan_collector.spool.interfaces import SpoolFull
from tailspan_collector.spool.log import Log, Request
from tailspan_collector.spool.reader import Reader
from tailspan_collector.spool.recent import SEGMENTS, Place, Recent
from tailspan_collector.spool.segments import segment_path
from tailspan_collector.spool.state import StateFile

_LOG = logging.getLogger(__name__)
RESEND_SECONDS = 300.0  # longer than a sender tries; OTLP exporters give up after about a minute
RESEND_BYTES = 256 * 1024 * 1024
_RETRY_FULL_S, _RETRY_CLOSING_S = 5.0, 1.0


class Spool:
    """A folder of segments, the writer's place in it and the places of the cursors."""

    def __init__(
        self,
        folder: Path,
        signal: Signal,
        max_unread_bytes: int,
        max_unread_seconds: float,
        metrics: Metrics,
        segment_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """Open or create the folder, which no other process may use.

        Raises:
            OSError: it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.signal, self._metrics = folder, signal, metrics
        self._most_bytes, self._most_seconds = max_unread_bytes, max_unread_seconds
        self._recent = Recent(folder)
        state = StateFile(folder / "cursor.json")
        first = state.value.get("next", (0, 0))[0] + 1
        self._log = Log(folder, signal, metrics, segment_bytes, first, self._recent.add)
        self._changed = self._log.changed
        self._reader = Reader(self._log, signal, metrics)
        self._one_writer = threading.Lock()
        self._batches = Batches(self._log, self._reader, state)
        self._cursors: list[SpoolCursor] = []
        self._resent, self._refused = metrics.resent.labels(signal.name), metrics.refused.labels(signal.name)
        metrics.unread_bytes.labels(signal.name).set_function(self.unread_bytes)
        metrics.lag_seconds.labels(signal.name).set_function(self.unread_seconds)
        self._index_recent()

    # --- receivers --------------------------------------------------------------------------------------------------

    def append(self, payload: bytes, peer: str = "") -> bool:
        """See `interfaces.Intake`."""
        request = Request(records.digest(payload), payload, peer)
        try:
            with self._changed:
                if self._log.closing:
                    raise SpoolFull("the collector is shutting down", _RETRY_CLOSING_S)
                group = None
                if not self._recent.holds(request.digest, payload):
                    self._check_room()
                    group, is_new = self._log.join_group(request)
            if group is not None:
                group.wait()
                if is_new:
                    return True
        except SpoolFull:
            self._refused.inc()
            raise
        self._resent.inc()
        return False

    def submit(self, payload: bytes, peer: str, done: Callable[[Exception | None], None]) -> None:
        """Like `append`, but returns at once; `done` is called, from any thread, when it would return or raise."""
        request = Request(records.digest(payload), payload, peer)
        try:
            with self._changed:
                if self._log.closing:
                    raise SpoolFull("the collector is shutting down", _RETRY_CLOSING_S)
                is_known = self._recent.holds(request.digest, payload)
                is_new = False
                if not is_known:
                    self._check_room()
                    group, is_new = self._log.join_group(request)
                    group.callbacks.append(done)
        except SpoolFull:
            self._refused.inc()
            raise
        if not is_new:
            self._resent.inc()
        if is_known:
            done(None)

    def _check_room(self) -> None:
        waiting = self._log.bytes_after(self._batches.done) + self._log.pending_bytes
        if waiting > self._most_bytes:
            raise SpoolFull(f"more than {self._most_bytes} bytes wait to be written to ClickHouse", _RETRY_FULL_S)
        if self._batches.oldest_age_s() > self._most_seconds:
            raise SpoolFull(
                f"requests have waited more than {self._most_seconds:g} s to be written to ClickHouse", _RETRY_FULL_S
            )

    # --- the writer -------------------------------------------------------------------------------------------------

    def unread_bytes(self) -> int:
        """Return how many durable bytes are not yet stored in ClickHouse."""
        with self._changed:
            return self._log.bytes_after(self._batches.done)

    def unread_seconds(self) -> float:
        """Return the age of the oldest request that is not yet stored in ClickHouse, 0 if all are."""
        with self._changed:
            return self._batches.oldest_age_s()

    def unfrozen_bytes(self) -> int:
        """Return how many durable bytes are in no batch yet."""
        with self._changed:
            return self._batches.unfrozen_bytes

    def wait_unfrozen(self, enough: Callable[[], bool]) -> bool:
        """Wait until there is something to freeze, or `enough`, asked at each `wake`; return whether there is."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches.has_more or enough())
            return self._batches.has_more

    def wake(self) -> None:
        """Let those that wait look again."""
        with self._changed:
            self._changed.notify_all()

    def freeze(self, most_bytes: int) -> Batch | None:
        """Decide the next batch, durably; see `Batches.freeze`."""
        with self._one_writer:
            return self._batches.freeze(most_bytes)

    def commit(self, batch: Batch) -> None:
        """Remember that a batch is stored, and remove segments that nobody needs any more."""
        with self._one_writer:
            try:
                self._batches.commit(batch)
            except OSError as error:
                _LOG.error("cannot save that a batch is stored: %s; after a crash it is inserted again", error)
            self._remove_unneeded()

    # --- other readers ----------------------------------------------------------------------------------------------

    def cursor(self, name: str, most_behind_bytes: int, most_behind_seconds: float) -> SpoolCursor:
        """Open a reader of its own, before the writer starts; a new name begins with the next request that comes.

        Raises:
            ValueError: the name is no file name, or open already.
            OSError: its position cannot be saved.
        """
        if not re.fullmatch(r"[\w.-]{1,100}", name) or name in {cursor.name for cursor in self._cursors}:
            raise ValueError(f"{name!r} is no name for a new cursor")
        state = StateFile(self.folder / f"cursor-{name}.json")
        cursor = SpoolCursor(name, self._log, self._reader, state, most_behind_bytes, most_behind_seconds)
        self._cursors.append(cursor)
        return cursor

    # --- housekeeping -----------------------------------------------------------------------------------------------

    def _index_recent(self) -> None:
        numbers = [number for number in self._log.sizes if number < self._log.own_first][-SEGMENTS:]
        for number in numbers:
            size = self._log.sizes[number]
            if not size:
                continue
            with self._log.map(number, size) as data:
                for item in records.scan(data, 0, size, verify=False):
                    if isinstance(item, records.Record):
                        self._recent.add(item.digest, Place(number, item.payload_start, item.end))

    def _remove_unneeded(self) -> None:
        for cursor in self._cursors:
            cursor.enforce_bounds()
        with self._changed:
            needed = min([self._batches.done, *(cursor.position for cursor in self._cursors)]).segment
            removable, kept, now = [], 0, time.time()
            for number, size in reversed(self._log.sizes.items()):
                kept += size
                if number >= min(needed, self._log.end.segment):
                    continue
                age_s = now - segment_path(self.folder, number).stat().st_mtime
                if kept > RESEND_BYTES or age_s > RESEND_SECONDS or not size:
                    removable.append(number)
            self._log.remove(removable)
            for number in removable:
                self._recent.forget(number)

    def stop_accepting(self) -> None:
        """Refuse new requests; return once those already taken are on disk."""
        self._log.stop_accepting()

    def close(self) -> None:
        """Stop accepting and close the files."""
        self._log.close()
        self._batches.close()
        for cursor in self._cursors:
            cursor.close()
