"""One destination at work: a lane for each of its signals, or a sampler where it wants only some traces.

Start before the writer of the spools (a cursor keeps segments from the moment it is open) and stop after the receivers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from clickhouse_connect.driver.client import Client as QueryClient

from tailspan_collector.forward.client import open_client
from tailspan_collector.forward.courier import Courier
from tailspan_collector.forward.destination import Destination
from tailspan_collector.forward.lane import Lane
from tailspan_collector.forward.sampler import Sampler
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES, Signal
from tailspan_collector.spool.interfaces import Cursor


class Spools(Protocol):
    """What a forwarder needs of a spool."""

    def cursor(self, name: str, most_behind_bytes: int, most_behind_seconds: float) -> Cursor:
        """Open a reader of its own."""


class Forwarder:
    """A running destination."""

    def __init__(
        self,
        destination: Destination,
        spools: Mapping[str, Spools],
        query_client: Callable[[], QueryClient],
        metrics: Metrics,
        state: Path,
    ) -> None:
        """Open connections and cursors; nothing is sent before `start`.

        `spools` by name of signal. `query_client` is called before every query of a sampler and may raise while
        ClickHouse is down; who gives the client closes it. `state` is the folder for the place of samplers.

        Raises:
            UserError: the destination cannot be used as it is configured.
        """
        self.destination = destination
        self._deadline = 0.0
        self._parts: list[Lane | Sampler] = []
        with ExitStack() as on_error:
            for signal in destination.signals:
                client = open_client(destination, signal)
                courier = Courier(destination, signal, client, metrics)
                on_error.callback(courier.close)
                if destination.sample is not None and signal is TRACES:
                    self._parts.append(Sampler(destination, destination.sample, courier, query_client, state))
                else:
                    cursor = self._cursor(spools, signal)
                    self._parts.append(Lane(destination, signal, cursor, courier, metrics))
            on_error.pop_all()

    def start(self) -> None:
        """Begin to forward."""
        for part in self._parts:
            part.start()

    def begin_stop(self, grace_s: float) -> None:
        """Send what is left for so long, as long as the destination takes it; returns at once."""
        self._deadline = time.monotonic() + grace_s
        for part in self._parts:
            part.stop(grace_s)

    def join(self) -> None:
        """Wait for the end after `begin_stop`; what is left keeps its place for later."""
        for part in self._parts:
            part.join(max(0.0, self._deadline - time.monotonic()) + 0.5)

    def stop(self, grace_s: float) -> None:
        """Begin to stop, and wait for the end."""
        self.begin_stop(grace_s)
        self.join()

    def _cursor(self, spools: Mapping[str, Spools], signal: Signal) -> Cursor:
        destination = self.destination
        return spools[signal.name].cursor(
            destination.name, destination.most_behind_bytes, destination.most_behind_seconds
        )


def stop_all(forwarders: Sequence[Forwarder], grace_s: float) -> None:
    """Stop all destinations within one grace, side by side."""
    for forwarder in forwarders:
        forwarder.begin_stop(grace_s)
    for forwarder in forwarders:
        forwarder.join()
