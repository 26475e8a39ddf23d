"""Reads a log forward from a place, around whatever is damaged; what is damaged is kept aside and counted once."""

from __future__ import annotations

import contextlib
import logging
import mmap
import time
from dataclasses import dataclass

from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import Signal
from tailspan_collector.spool.interfaces import Position
from tailspan_collector.spool.log import Log
from tailspan_collector.spool.records import Gap, Record, read_header, scan
from tailspan_collector.spool.segments import keep_aside

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent valid records of one segment; `body` is exactly their bytes, from offset `start` on, not copied."""

    segment: int
    start: int
    body: memoryview
    records: tuple[Record, ...]

    @property
    def end(self) -> Position:
        """The place after the last record."""
        return Position(self.segment, self.start + len(self.body))


class Reader:
    """Stateless, for any number of threads."""

    def __init__(self, log: Log, signal: Signal, metrics: Metrics) -> None:
        self._log = log
        self._corrupt_bytes = metrics.corrupt_bytes.labels(signal.name)

    def read(self, position: Position, most_bytes: int, until: Position | None = None) -> Run | None:
        """Read at least one record, at most `most_bytes` if there are more; None if there is nothing (`until`)."""
        while True:
            with self._log.changed:
                position = self._log.settle(position)
                end = self._log.sizes.get(position.segment, 0)
            if until is not None and until.segment == position.segment:
                end = min(end, until.offset)
            if position.offset >= end or (until is not None and position >= until):
                return None
            try:
                data = self._log.map(position.segment, end)
            except FileNotFoundError:
                position = Position(position.segment + 1, 0)
                continue
            found = self._run(position, data, end, most_bytes)
            if isinstance(found, Run):
                return found  # its body keeps the map open
            self._set_aside(position.segment, found, data)
            position = Position(position.segment, found.end)

    def _run(self, position: Position, data: mmap.mmap, end: int, most_bytes: int) -> Run | Gap:
        taken: list[Record] = []
        for item in scan(data, position.offset, end, self._log.must_verify(position.segment)):
            if isinstance(item, Gap):
                if not taken:
                    return item
                break
            if taken and item.end - position.offset > most_bytes:
                break
            taken.append(item)
        body = memoryview(data)[position.offset : taken[-1].end]
        return Run(position.segment, position.offset, body, tuple(taken))

    def count(self, start: Position, end: Position) -> int:
        """Return how many records lie between two places of one segment, by their headers."""
        with contextlib.suppress(FileNotFoundError), self._log.map(start.segment, end.offset) as data:
            return sum(isinstance(item, Record) for item in scan(data, start.offset, end.offset, verify=False))
        return 0

    def received_ns(self, position: Position) -> int:
        """Return when the request at a place came; now, if that cannot be read."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            with self._log.changed:
                end = self._log.sizes.get(position.segment, 0)
            with self._log.map(position.segment, end) as data:
                record = read_header(data, position.offset)
                if record is not None:
                    return record.received_ns
        return time.time_ns()

    def _set_aside(self, segment: int, gap: Gap, data: mmap.mmap) -> None:
        try:
            is_new = keep_aside(self._log.folder, segment, gap.start, data[gap.start : gap.end])
        except OSError as error:
            _LOG.error("damaged bytes of the spool cannot be kept aside: %s", error)
            is_new = True
        if is_new:
            _LOG.error(
                "%s bytes at %s of spool segment %s in %s are no valid record; skipped and kept in a file damaged-*",
                gap.end - gap.start, gap.start, segment, self._log.folder,
            )  # fmt: skip
            self._corrupt_bytes.inc(gap.end - gap.start)
