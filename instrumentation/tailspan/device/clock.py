"""A device's clock on the host's: where the offset between the two can be, from anchors that bracket it.

An anchor is a moment of the device's clock and the two host times between which it came: right before it was handed to
the device, which cannot have passed it earlier, and right after it was seen to be done. One on an idle stream brackets
within microseconds, one behind queued work leaves one side open by as long as that took; the intersection of many is
as tight as the best of both sides.

What is stated holds as long as the drift does what is assumed of it: the device's clock runs at most `DRIFT_PPM` faster
or slower than the host's, and its rate changes by at most `WANDER_PPM` within `WINDOW_S`. Anchors that contradict each
other show that it did not; then the newest alone is believed and everything begins anew (`resets`).

How tight: with an anchor of +-a us no more than d ms of device time away it is +-(a + 0.3 d) us at first, and once
anchors some seconds apart have told the rate, to within its wander, +-(a + 0.05 d) us.

Units: ns; times of the device count from any fixed moment of its own.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tailspan.device.timer import HostTime

DRIFT_PPM: Final = 300
WANDER_PPM: Final = 50
WINDOW_S: Final = 60
"""Seconds of steady rate: half of it to learn the rate from, the other half to count on what was learned."""
ANCHORS: Final = 4
"""Anchors that are kept to place a moment; each holds what all before it told, so a few do."""
LEARN_EVERY_S: Final = 1

_SECOND: Final = 10**9
_DRIFT: Final = DRIFT_PPM / 1e6
_WANDER: Final = WANDER_PPM / 1e6
_HALF_NS: Final = WINDOW_S * _SECOND // 2


class _Anchor(NamedTuple):
    """At `at_ns` of the device, host minus device was between `low` and `high`, both less the clock's base."""

    at_ns: int
    low: float
    high: float


class DeviceClock:
    """Places moments of one device's clock on the host's monotonic clock."""

    __slots__ = ("_anchors", "_base", "_fastest", "_history", "_slowest", "resets")

    def __init__(self) -> None:
        self.resets = 0
        self._anchors: list[_Anchor] = []
        self._history: list[_Anchor] = []
        self._base = 0
        self._slowest, self._fastest = -_DRIFT, _DRIFT

    @property
    def drift_ppm(self) -> tuple[float, float]:
        """Lower and upper bound of how much faster the host's clock runs than the device's, in parts per million."""
        return self._slowest * 1e6, self._fastest * 1e6

    def forget(self) -> None:
        """Begin anew, for a device clock that is another one from here on."""
        self._anchors = []
        self._base = 0
        self._unlearn()

    def anchor(self, at_ns: int, earliest_ns: int, latest_ns: int, error_ns: int = 0) -> HostTime:
        """Learn that the device's moment `at_ns`, known to within `error_ns`, came between two host times.

        Returns when it was, by this anchor and all others.
        """
        if not self._anchors:
            self._base = earliest_ns - at_ns
        offset_ns = at_ns + self._base
        low: float = earliest_ns - offset_ns - error_ns
        high: float = latest_ns - offset_ns + error_ns
        if self._history and at_ns - self._history[-1].at_ns > _HALF_NS:
            self._unlearn()
        known_low, known_high = self._bounds(at_ns)
        if low > known_high or high < known_low:
            self.resets += 1
            self._unlearn()
            self._anchors = []
        elif low <= known_low and high >= known_high:
            return self._moment(at_ns, known_low, known_high, error_ns)
        else:
            low, high = max(low, known_low), min(high, known_high)
        self._keep(_Anchor(at_ns, low, high))
        return self._moment(at_ns, low, high, error_ns)

    def host_time(self, at_ns: int, error_ns: int = 0) -> HostTime | None:
        """Return when a moment of the device, known to within `error_ns`, was; None without any anchor."""
        if not self._anchors:
            return None
        return self._moment(at_ns, *self._bounds(at_ns), error_ns)

    def widen(self, error_ns: int) -> None:
        """Times of the device that come from now on may be off by `error_ns` against those before."""
        self._anchors = [_Anchor(at, low - error_ns, high + error_ns) for at, low, high in self._anchors]
        self._history = [_Anchor(at, low - error_ns, high + error_ns) for at, low, high in self._history]

    def _moment(self, at_ns: int, low: float, high: float, error_ns: int) -> HostTime:
        """Return the middle; the two that are added make up for its fractions."""
        return HostTime(at_ns + self._base + int((low + high) / 2), int((high - low) / 2) + error_ns + 2)

    def _bounds(self, at_ns: int) -> tuple[float, float]:
        """Intersect what all anchors say of the offset at a moment before or after them."""
        lowest, highest = -math.inf, math.inf
        slowest, fastest = self._slowest, self._fastest
        for anchor_at, low, high in self._anchors:
            distance = at_ns - anchor_at
            if distance >= 0:
                low += slowest * distance
                high += fastest * distance
            else:
                low += fastest * distance
                high += slowest * distance
            if low > lowest:
                lowest = low
            if high < highest:
                highest = high
        return lowest, highest

    def _keep(self, anchor: _Anchor) -> None:
        if len(self._anchors) >= ANCHORS:
            del self._anchors[0]
        self._anchors.append(anchor)
        if not self._history or anchor.at_ns - self._history[-1].at_ns >= LEARN_EVERY_S * _SECOND:
            self._learn(anchor)
            self._history.append(anchor)

    def _learn(self, newest: _Anchor) -> None:
        """Bound the rate: it is within its wander of every mean rate between a former anchor and this one."""
        self._history = [old for old in self._history if newest.at_ns - old.at_ns <= _HALF_NS]
        self._anchors = [old for old in self._anchors if newest.at_ns - old.at_ns <= _HALF_NS]
        slowest, fastest = -_DRIFT, _DRIFT
        for at_ns, low, high in self._history:
            distance = newest.at_ns - at_ns
            slowest = max(slowest, (newest.low - high) / distance - _WANDER)
            fastest = min(fastest, (newest.high - low) / distance + _WANDER)
        if slowest > fastest:
            self._unlearn()
        else:
            self._slowest, self._fastest = slowest, fastest

    def _unlearn(self) -> None:
        self._history = []
        self._slowest, self._fastest = -_DRIFT, _DRIFT
