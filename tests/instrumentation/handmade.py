"""What the tests of hand-written workers share."""

from __future__ import annotations

import time

from tests.engines.recorded import Traced

MS = 1_000_000


def without_gaps(one: Traced) -> bool:
    """Whether each stage begins where the previous one ended, up to the end of the request."""
    ends = [stage.end_ns for stage in one.stages]
    return [stage.begin_ns for stage in one.stages[1:]] == ends[:-1] and ends[-1] == one.end_ns


def work(ms: float = 2) -> None:
    """Take some time."""
    time.sleep(ms / 1000)
