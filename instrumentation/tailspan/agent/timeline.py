"""The steps in which one request took part, ordered for questions about an interval of time: pure functions.

In: steps by number. Units: monotonic ns. A question costs no more for a request of 1,000 steps than for one of 10.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate

from tailspan.agent.decode import Step


class Timeline:
    """Steps of one engine; those that run on several devices at once may overlap."""

    __slots__ = ("_begin_sums", "_begins", "_end_sums", "_ends", "_in_order", "_numbers", "_steps")

    def __init__(self, steps: Mapping[int, Step]) -> None:
        """Sort the times; steps in the order of their numbers need next to no sorting."""
        self._numbers = sorted(steps)
        self._steps = [steps[number] for number in self._numbers]
        begins = [step.begin_ns for step in self._steps]
        ends = [step.end_ns for step in self._steps]
        self._begins, self._ends = sorted(begins), sorted(ends)
        self._in_order = begins == self._begins and ends == self._ends
        self._begin_sums = list(accumulate(self._begins, initial=0))
        self._end_sums = list(accumulate(self._ends, initial=0))

    @property
    def last(self) -> int:
        """Number of the last step, 0 without one."""
        return self._numbers[-1] if self._numbers else 0

    def ends_ns(self, first: int, last: int) -> list[int]:
        """Return when the steps from one number to another ended, in the order of their numbers."""
        begin, end = bisect_left(self._numbers, first), bisect_right(self._numbers, last)
        return self._ends[begin:end] if self._in_order else [step.end_ns for step in self._steps[begin:end]]

    def busy_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return the time that steps spent in an interval, at most its length."""
        return max(0, min(self._until(end_ns) - self._until(begin_ns), end_ns - begin_ns))

    def between(self, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
        """Return the numbers of the first and last step that ran within an interval."""
        if self._in_order:
            first, last = bisect_right(self._ends, begin_ns), bisect_left(self._begins, end_ns) - 1
            return (self._numbers[first], self._numbers[last]) if first <= last else None
        within = [step.number for step in self._steps if step.end_ns > begin_ns and step.begin_ns < end_ns]
        return (within[0], within[-1]) if within else None

    def _until(self, at_ns: int) -> int:
        """Return the time that steps spent before a moment: that since their begins less that since their ends."""
        begun, ended = bisect_left(self._begins, at_ns), bisect_left(self._ends, at_ns)
        return begun * at_ns - self._begin_sums[begun] - (ended * at_ns - self._end_sums[ended])
