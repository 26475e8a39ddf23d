"""Geometry of a waterfall: which stretch of time no stage covers, and which columns of a line a stretch fills.

Units: nanoseconds in, columns out. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]
"""Begin and end, ns."""


def gaps(whole: Interval, covered: Iterable[Interval]) -> list[Interval]:
    """Return the parts of `whole` that no interval covers, in order."""
    begin, end = whole
    found = []
    # An interval without length covers nothing and must not split a gap.
    for left, right in sorted(interval for interval in covered if interval[1] > interval[0]):
        if left > begin:
            found.append((begin, min(left, end)))
        begin = max(begin, right)
        if begin >= end:
            break
    if begin < end:
        found.append((begin, end))
    return [(left, right) for left, right in found if right > left]


def columns(interval: Interval, axis: Interval, width: int) -> tuple[int, int]:
    """Return first and last-but-one column of an interval on an axis of `width` columns; at least one column."""
    length = max(axis[1] - axis[0], 1)
    left = int((interval[0] - axis[0]) * width / length)
    right = round((interval[1] - axis[0]) * width / length)
    left = min(max(left, 0), width - 1)
    return left, min(max(right, left + 1), width)


def line(intervals: Iterable[Interval], axis: Interval, width: int, fill: str, thin: str) -> str:
    """Draw intervals on one line: `fill` for each column, `thin` for an interval shorter than half a column."""
    cells = [" "] * width
    half = (axis[1] - axis[0]) / max(width, 1) / 2
    for interval in intervals:
        left, right = columns(interval, axis, width)
        for column in range(left, right):
            if cells[column] != fill:
                cells[column] = thin if interval[1] - interval[0] < half else fill
    return "".join(cells)
