"""Turns the marks of one step into the time of each part; pure functions without torch.

In:  offsets of the marks from the step's begin, ns, and a code for each interval: what ran in it and whether the mark
     before it was the end of a call.
Out: ns of each part. They partition the step: together they are its time less what the marks themselves took.

Time belongs to the innermost timed call that is open. What a pair of marks takes is known from calls that do nothing,
in between the others (`calibration`): their intervals belong to no part, and from every other interval what such an
empty one takes is subtracted, never below 0. So a sampled step adds up to what it would take without sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

LEFT: Final = 1 << 30
"""Added to the code of an interval that begins where a timed call ended."""
PART: Final = LEFT - 1
"""Mask of an interval's part."""


def partition(
    offsets: Sequence[float], codes: Sequence[int], total_ns: float, parts: int, tail: int | None = None
) -> list[float]:
    """Return the ns of each of `parts` parts.

    `codes[0]` is what ran from the begin to the first mark, `codes[i + 1]` what ran after mark `i`, the last one until
    the end, which is at `total_ns`; `tail` replaces the last one's part. The code `parts` is a call that does nothing.
    """
    times = [0.0] * (parts + 1)
    bounds = [0.0, *offsets, total_ns]
    inside_ns, between_ns = empty_pair(bounds, codes, parts)
    mixed_ns = (inside_ns + between_ns) / 2
    last = len(codes) - 1
    for index, code in enumerate(codes):
        part = code & PART
        took_ns = bounds[index + 1] - bounds[index]
        if part == parts or (index < last and codes[index + 1] == parts):
            continue  # a call that does nothing, or what is between the call before and that
        if 0 < index < last:
            begins_with_end, ends_with_end = code & LEFT, codes[index + 1] & LEFT
            if begins_with_end:
                took_ns -= mixed_ns if ends_with_end else between_ns
            else:
                took_ns -= inside_ns if ends_with_end else mixed_ns
        times[tail if index == last and tail is not None else part] += max(took_ns, 0.0)
    return times[:parts]


def empty_pair(bounds: Sequence[float], codes: Sequence[int], parts: int) -> tuple[float, float]:
    """Return what a call that does nothing shows, ns: between its two marks, and between another call's end and it."""
    empty = [index for index, code in enumerate(codes) if code == parts and index > 0]
    if not empty:
        return 0.0, 0.0
    inside = median(bounds[index + 1] - bounds[index] for index in empty)
    between = median(bounds[index] - bounds[index - 1] for index in empty)
    return inside, between
