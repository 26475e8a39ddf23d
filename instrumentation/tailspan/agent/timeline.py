"""The steps in which one request took part, ordered for questions about an interval of time: pure functions.

In: steps by number, and their device times. Units: monotonic ns. A question costs no more for a request of 1,000 steps
than for one of 10.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate

from tailspan.agent.decode import Step
from tailspan.agent.device import CPU, DeviceTime


class _Time:
    """Intervals, which may overlap, for the question how much of them lies in another one."""

    __slots__ = ("_begin_sums", "_end_sums", "begins", "ends")

    def __init__(self, begins: list[int], ends: list[int]) -> None:
        """Sort the begins, and the ends."""
        self.begins, self.ends = sorted(begins), sorted(ends)
        self._begin_sums = list(accumulate(self.begins, initial=0))
        self._end_sums = list(accumulate(self.ends, initial=0))

    def within_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return the time that they spent in an interval, at most its length."""
        return max(0, min(self._until(end_ns) - self._until(begin_ns), end_ns - begin_ns))

    def _until(self, at_ns: int) -> int:
        """Return the time that they spent before a moment: that since their begins less that since their ends."""
        begun, ended = bisect_left(self.begins, at_ns), bisect_left(self.ends, at_ns)
        return begun * at_ns - self._begin_sums[begun] - (ended * at_ns - self._end_sums[ended])


class Timeline:
    """Steps of one engine; those that run on several devices at once may overlap."""

    __slots__ = ("_busy", "_device", "_device_time", "_in_order", "_numbers", "_steps", "_untimed")

    def __init__(self, steps: Mapping[int, Step], device: Mapping[int, DeviceTime] | None = None) -> None:
        """Sort the times; steps in the order of their numbers need next to no sorting.

        `device` holds the device time of these steps and of any others.
        """
        self._numbers = sorted(steps)
        self._steps = [steps[number] for number in self._numbers]
        begins = [step.begin_ns for step in self._steps]
        ends = [step.end_ns for step in self._steps]
        self._busy = _Time(begins, ends)
        self._in_order = begins == self._busy.begins and ends == self._busy.ends
        self._device = device or {}
        self._device_time: _Time | None = None
        self._untimed: list[int] = []

    @property
    def last(self) -> int:
        """Number of the last step, 0 without one."""
        return self._numbers[-1] if self._numbers else 0

    def ends_ns(self, first: int, last: int) -> list[int]:
        """Return when the steps from one number to another ended, in the order of their numbers."""
        begin, end = bisect_left(self._numbers, first), bisect_right(self._numbers, last)
        return self._busy.ends[begin:end] if self._in_order else [step.end_ns for step in self._steps[begin:end]]

    def busy_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return the time that steps spent in an interval, at most its length."""
        return self._busy.within_ns(begin_ns, end_ns)

    def gpu_ns(self, begin_ns: int, end_ns: int) -> int | None:
        """Return the time in an interval that a GPU spent on steps; None unless it timed all that ran in the interval.

        Where it is not known when the device began, it is taken to have ended with the step.
        """
        if not self._device:
            return None
        if self._device_time is None:
            self._device_time = self._timed()
        between, untimed = self.between(begin_ns, end_ns), self._untimed
        if between is not None and bisect_left(untimed, between[0]) != bisect_right(untimed, between[1]):
            return None
        return self._device_time.within_ns(begin_ns, end_ns) if self._device_time.begins else None

    def between(self, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
        """Return the numbers of the first and last step that ran within an interval."""
        if self._in_order:
            ends, begins = self._busy.ends, self._busy.begins
            first, last = bisect_right(ends, begin_ns), bisect_left(begins, end_ns) - 1
            return (self._numbers[first], self._numbers[last]) if first <= last else None
        within = [step.number for step in self._steps if step.end_ns > begin_ns and step.begin_ns < end_ns]
        return (within[0], within[-1]) if within else None

    def _timed(self) -> _Time:
        """Return when a GPU worked on the steps, and note the numbers of those that none has timed."""
        begins, ends = [], []
        for step in self._steps:
            time = self._device.get(step.number)
            if time is None or time.device == CPU:
                self._untimed.append(step.number)
                continue
            begin_ns = time.begin_ns if time.begin_ns is not None else step.end_ns - time.busy_ns
            begins.append(begin_ns)
            ends.append(begin_ns + time.busy_ns)
        return _Time(begins, ends)
