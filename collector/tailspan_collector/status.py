"""What a collector says about its readiness, and the one thread that asks ClickHouse whether it answers.

Out: `Status`, a snapshot for `/readyz` and the gauges that alerts need beside the counters of `metrics.Metrics`.
A collector is ready when every spool takes data. ClickHouse that does not answer is said, and does not make it unready:
the spool is there for that, and a restart or another replica would not mend it.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailspan_collector.signals import Signal

_LOG = logging.getLogger(__name__)
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")
_LONGEST_ERROR = 300
_LEAST_FREE_BYTES = 16 * 1024 * 1024  # below it appends begin to fail


@dataclass(frozen=True, slots=True)
class SpoolState:
    """One signal's spool; a limit of 0 is not known."""

    signal: str
    takes_data: bool
    reason: str = ""
    """Why it takes none: full, too old, disk error, closing; empty when it does."""
    unread_bytes: int = 0
    limit_bytes: int = 0
    lag_seconds: float = 0.0
    limit_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ClickHouseState:
    """The outcome of the latest attempt to ask ClickHouse."""

    endpoint: str
    """Without credentials."""
    answers: bool
    error: str = ""
    checked_seconds_ago: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot of a running collector."""

    spools: tuple[SpoolState, ...]
    clickhouse: ClickHouseState
    disk_free_bytes: int
    """Free bytes of the file system that holds the spool."""

    @property
    def ready(self) -> bool:
        """Whether every spool takes data."""
        return all(spool.takes_data for spool in self.spools)

    @property
    def problems(self) -> list[str]:
        """One sentence for each thing that is wrong, those of the spools first."""
        found = [
            f"the spool of {spool.signal} takes no data: {spool.reason or 'no reason given'}"
            for spool in self.spools
            if not spool.takes_data
        ]
        if not self.clickhouse.answers:
            found.append(f"ClickHouse at {self.clickhouse.endpoint} does not answer: {self.clickhouse.error}")
        return found


class SpoolView(Protocol):
    """What of a spool is looked at."""

    @property
    def signal(self) -> Signal:
        """The signal that it holds."""

    def unread_bytes(self) -> int:
        """Return the bytes that are not in ClickHouse yet."""

    def unread_seconds(self) -> float:
        """Return the age of the oldest request that is not in ClickHouse yet."""


class StatusReader:
    """Makes a `Status` of the parts of a running collector."""

    def __init__(
        self,
        spools: Sequence[SpoolView],
        most_bytes: int,
        most_seconds: float,
        folder: Path,
        probe: ClickHouseProbe,
    ) -> None:
        """`most_bytes` and `most_seconds` are the limits of each spool, `folder` is where they lie."""
        self._spools, self._folder, self._probe = spools, folder, probe
        self._most_bytes, self._most_seconds = most_bytes, most_seconds
        self.is_closing = False

    def __call__(self) -> Status:
        """Return a snapshot.

        Raises:
            OSError: the folder is gone.
        """
        free = shutil.disk_usage(self._folder).free
        return Status(tuple(self._state(spool, free) for spool in self._spools), self._probe.state(), free)

    def _state(self, spool: SpoolView, free_bytes: int) -> SpoolState:
        unread, lag = spool.unread_bytes(), spool.unread_seconds()
        reason = ""
        if self.is_closing:
            reason = "the collector is shutting down"
        elif unread > self._most_bytes:
            reason = f"{unread} bytes wait for ClickHouse, --max-spool-bytes is {self._most_bytes}"
        elif lag > self._most_seconds:
            reason = f"data wait for ClickHouse since {lag:.0f} s, --max-spool-seconds is {self._most_seconds:g}"
        elif free_bytes < _LEAST_FREE_BYTES:
            reason = f"only {free_bytes} bytes are free on the disk"
        return SpoolState(
            spool.signal.name, not reason, reason, unread, self._most_bytes, round(lag, 3), self._most_seconds
        )


class ClickHouseProbe:
    """Asks ClickHouse every few seconds in a thread of its own, so that `/readyz` never waits for it."""

    def __init__(self, endpoint: str, ping: Callable[[], object], interval_s: float = 5.0) -> None:
        """`ping` runs a trivial query and raises if it fails; `endpoint` may hold credentials, they are not shown."""
        self._endpoint = _CREDENTIALS.sub("", endpoint)
        self._ping, self._interval_s = ping, interval_s
        self._outcome: tuple[bool, str, float] = (False, "not asked yet", time.monotonic())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clickhouse-probe", daemon=True)

    def start(self) -> None:
        """Ask for the first time at once."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Ask no more; a question under way may outlast `timeout`."""
        self._stop.set()
        self._thread.join(timeout)

    def state(self) -> ClickHouseState:
        """Return the latest outcome."""
        answers, error, asked = self._outcome
        return ClickHouseState(self._endpoint, answers, error, time.monotonic() - asked)

    def _run(self) -> None:
        while not self._stop.is_set():
            error = self._ask()
            if error and self._outcome[0]:
                _LOG.warning("ClickHouse at %s does not answer any more: %s", self._endpoint, error)
            elif not error and self._outcome[1] not in ("", "not asked yet"):
                _LOG.warning("ClickHouse at %s answers again", self._endpoint)
            self._outcome = (not error, error, time.monotonic())
            self._stop.wait(self._interval_s)

    def _ask(self) -> str:
        try:
            self._ping()
        except Exception as failure:
            lines = str(failure).splitlines() or [type(failure).__name__]
            return _CREDENTIALS.sub("", lines[0])[:_LONGEST_ERROR]
        return ""
