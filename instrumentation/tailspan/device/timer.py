"""The one interface to a device's clock; `host` (CPU) and `cuda` implement it.

A mark is a point in the device's queue of work: cheap to record, readable once the device has passed it. Nothing here
ever waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

Mark = Any
"""Opaque; belongs to the timer that gave it until it is released."""

UNKNOWN: Final = -1
"""An elapsed time that the device cannot tell any more, or not yet."""


class HostTime(NamedTuple):
    """A moment on the host's monotonic clock and how far off it can be to either side. Units: ns."""

    at_ns: int
    uncertainty_ns: int


class DeviceTimer(Protocol):
    """The clock of one device, used by the one thread that launches work on it."""

    @property
    def kind(self) -> str:
        """One of `attributes.DEVICES`."""

    @property
    def epoch(self) -> int:
        """Changes when all marks given before have become worthless: the device failed, or this is a forked child."""

    def record(self) -> Mark | None:
        """Return a mark at this point of the current stream; None (counted) if none is free or the stream changed."""

    def is_done(self, mark: Mark) -> bool:
        """Whether the device has passed the mark; never waits."""

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        """Return the device time between two marks that are done; negative (`UNKNOWN`) where it cannot be told."""

    def host_time(self, mark: Mark) -> HostTime | None:
        """Return when the device passed a mark that is done, on the host's clock; None while that is not known.

        Asking improves what is known of the device's clock, so ask for the end of a step before its begin.
        """

    def release(self, marks: Iterable[Mark]) -> None:
        """Give marks back, read or not."""
