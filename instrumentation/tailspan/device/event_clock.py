"""Host time of events of which only differences can be read, as 32-bit floats of milliseconds.

Times count from a reference event that is kept. A float has 24 bits, exact to 0.1 us at two seconds, but to 0.25 ms
after an hour: so an event more than `RENEW_NS` after the reference becomes the next one, and what its distance was
rounded by is added to the uncertainty of all that was learned before.

Units: ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from tailspan.device.clock import DeviceClock
from tailspan.device.timer import HostTime

RESOLUTION_NS: Final = 500
"""By how much a difference can be off because the device stamps in ticks: CUDA states about half a microsecond."""
RENEW_NS: Final = 2 * 10**9
_NS_PER_MS: Final = 1e6
_FLOAT_BITS: Final = 24


def _rounding_ns(elapsed_ms: float) -> int:
    """Return by how much a difference can be off, ticks included."""
    return RESOLUTION_NS + math.ceil(math.ldexp(_NS_PER_MS, math.frexp(elapsed_ms)[1] - _FLOAT_BITS))


_ROUNDING_NS: Final = _rounding_ns(RENEW_NS / _NS_PER_MS)


class Bracketed(Protocol):
    """An event that is done, and the host times around it."""

    event: Any
    recorded_ns: int
    """When it was recorded."""
    earliest_ns: int
    """The latest time at which it is known not to have been passed yet."""
    seen_ns: int
    """When it was seen to be done."""


class EventClock:
    """Places events on the host's clock; every event that is asked for is an anchor too."""

    __slots__ = ("_elapsed_ms", "_reference_at_ns", "clock", "reference")

    def __init__(self, elapsed_ms: Callable[[Any, Any], float]) -> None:
        """Take what reads the time from one event to a later one."""
        self.clock = DeviceClock()
        self._elapsed_ms = elapsed_ms
        self.reference: Bracketed | None = None
        """Must not be recorded again while it is this."""
        self._reference_at_ns = 0

    def forget(self) -> None:
        """Begin anew, with other events."""
        self.clock.forget()
        self.reference = None
        self._reference_at_ns = 0

    def host_time(self, mark: Bracketed) -> HostTime:
        """Return when the device passed the event; raises what reading it raises."""
        at_ns, error_ns = self._place(mark)
        return self.clock.anchor(at_ns, mark.earliest_ns, mark.seen_ns, error_ns)

    def _place(self, mark: Bracketed) -> tuple[int, int]:
        """Return the device's time of an event from the first reference on, and how far off that can be."""
        reference = self.reference
        if reference is None:
            self.reference = reference = mark
        if mark is reference:
            return self._reference_at_ns, 0
        later = mark.recorded_ns >= reference.recorded_ns
        pair = (reference.event, mark.event) if later else (mark.event, reference.event)
        elapsed_ms = self._elapsed_ms(*pair)
        distance_ns = round(elapsed_ms * _NS_PER_MS)
        if distance_ns <= RENEW_NS:
            return self._reference_at_ns + (distance_ns if later else -distance_ns), _ROUNDING_NS
        if not later:
            return self._reference_at_ns - distance_ns, _rounding_ns(elapsed_ms)
        self.clock.widen(_rounding_ns(elapsed_ms))
        self.reference = mark
        self._reference_at_ns += distance_ns
        return self._reference_at_ns, 0
