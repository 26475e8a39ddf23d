"""Wall time minus monotonic time of this host."""

from __future__ import annotations

import time

_TRIES = 5


def wall_offset_ns() -> int:
    """Return the offset, from the tightest of a few samples of the wall clock between two of the monotonic clock."""
    best_width_ns = best_offset_ns = None
    for _ in range(_TRIES):
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        width_ns = after_ns - before_ns
        if best_width_ns is None or width_ns < best_width_ns:
            best_width_ns, best_offset_ns = width_ns, wall_ns - (before_ns + after_ns) // 2
    return best_offset_ns or 0
