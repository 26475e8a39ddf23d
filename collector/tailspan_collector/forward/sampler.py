"""Sends the traces that a destination wants, as ClickHouse finds them, every span once.

Time runs in slices of `stored`, the second in which the insert of a span began: each tick takes the traces that got
spans since the last one, except the most recent `settle` seconds. A trace that was wanted before gets its new spans
sent, one that is wanted only now all its earlier ones too; one that is not wanted may become so by a later span.
A slice is worked off in pages of whole traces, in order of their ids; the place after a page is kept in a file once all
before it was taken or given up, so that a crash sends at most a page twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from clickhouse_connect.driver.client import Client

from tailspan_collector.files import read_json, write_json
from tailspan_collector.forward.courier import Courier
from tailspan_collector.forward.destination import Destination, Sample
from tailspan_collector.forward.slices import SLICE_S, Place, Slices
from tailspan_collector.forward.window import Item, Window

_LOG = logging.getLogger(__name__)
TICK_S = 5.0
_REQUESTS_AT_ONCE, _REQUESTS_AHEAD, _MOST_REQUESTS = 8, 2, 32


class Sampler:
    """One thread from ClickHouse to a courier."""

    def __init__(
        self,
        destination: Destination,
        sample: Sample,
        courier: Courier,
        query_client: Callable[[], Client],
        state: Path,
    ) -> None:
        self._name, self._courier = destination.name, courier
        self._slices = Slices(sample, destination.most_behind_seconds, query_client)
        self._file = state / f"sampler-{destination.name}.json"
        self._read: Place | None = None
        """How far ClickHouse was asked."""
        self._reached: Place | None = None
        """How far all is in the window."""
        self._saved: Place | None = None
        self._pieces: Iterator[bytes | Place] | None = None
        self._next_look, self._is_failing = 0.0, False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sample-{destination.name}", daemon=True)

    def start(self) -> None:
        """Begin to look; the first time, for what is stored from now on."""
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Begin to stop: the requests at hand are sent for so long, as long as the destination takes them."""
        self._courier.stop(grace_s)
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, then close the connections."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._courier.close()
        if self._thread.is_alive():
            self._thread.join(1.0)  # a query that hangs must not hold up the end

    def _run(self) -> None:
        while not self._stopping.is_set():
            window = Window(())
            self._fill(window, _REQUESTS_AT_ONCE)
            if not self._courier.deliver(window, lambda window: self._fill(window, _REQUESTS_AHEAD)):
                return
            self._save()
            if not window.items:
                self._stopping.wait(max(0.05, self._next_look - time.monotonic()))

    def _fill(self, window: Window, most: int) -> None:
        """Add what there is, a few requests at most; says so once if ClickHouse cannot be asked."""
        try:
            while most and len(window.items) < _MOST_REQUESTS and (piece := self._next_piece()) is not None:
                if isinstance(piece, Place):
                    self._read = self._reached = piece
                else:
                    window.extend([Item(piece, time.time_ns())])
                    most -= 1
        except Exception as error:
            if not self._is_failing:
                _LOG.warning("%s: cannot read what to forward, trying again: %.300s", self._name, error)
            self._pieces, self._is_failing, self._next_look = None, True, time.monotonic() + TICK_S
        else:
            self._is_failing = False

    def _next_piece(self) -> bytes | Place | None:
        """Return the next request or place; None if there is nothing now."""
        if self._pieces is None:
            if time.monotonic() < self._next_look:
                return None
            self._pieces = self._next_slice()
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = None
        return piece

    def _next_slice(self) -> Iterator[bytes | Place]:
        before = self._read or self._load()
        place = self._read = self._slices.begin(before)
        if place.after > before.after:
            self._courier.lost(
                "bound",
                f"spans stored from {_utc(before.after)} to {_utc(place.after)} are further behind than allowed",
            )
        is_behind = place.until - place.after >= SLICE_S
        self._next_look = 0.0 if is_behind else time.monotonic() + TICK_S
        if place.until <= place.after:
            self._read = Place(place.after)
            return iter(())
        return self._slices.pieces(place)

    def _load(self) -> Place:
        value = read_json(self._file)
        if value is not None:
            return Place(**value)
        self._reached = self._slices.now()
        self._save()
        return self._reached

    def _save(self) -> None:
        if self._reached is None or self._reached == self._saved:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, asdict(self._reached))
        except OSError as error:
            _LOG.error("the place of %s cannot be saved: %s; after a crash it may send traces twice", self._name, error)
        self._saved = self._reached


def _utc(unix_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))
