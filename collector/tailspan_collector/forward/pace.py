"""When the next try may start: at once while a destination takes requests, ever more slowly while it does not.

After a failure one try at a time is made, the first at once, for it may have been the request's own fault; then each
after a pause that doubles and is drawn at random from its upper half, so that collectors do not come back in step. The
first success brings full speed back.
Times are those of `time.monotonic`, seconds.
"""

from __future__ import annotations

import random

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
LONGEST_PAUSE_UNCLEAR_S = 2.0
"""A destination that answers, if only with 500, bears a try now and then, which may show that it takes others."""


class Pace:
    """The pace of one destination and signal."""

    def __init__(self) -> None:
        self.not_before = 0.0
        self.failures = 0
        """Failures one after the other; tries that were under way together count once."""
        self._last_failure = float("-inf")

    def may_start(self, now: float, in_flight: int) -> bool:
        """Whether another try may begin beside those that are under way."""
        return now >= self.not_before and (not self.failures or not in_flight)

    def succeeded(self) -> None:
        """Return to full speed."""
        self.failures, self.not_before = 0, 0.0

    def failed(self, started: float, now: float, *, is_clear: bool, retry_after_s: float | None = None) -> None:
        """Slow down after a try that began at `started`."""
        if started >= self._last_failure:
            self.failures += 1
            self._last_failure = now
            if self.failures > 1:
                pause = pause_s(self.failures - 1, LONGEST_PAUSE_S if is_clear else LONGEST_PAUSE_UNCLEAR_S)
                self.not_before = max(self.not_before, now + pause)
        if retry_after_s is not None:
            # A little more than asked for, so that not all come in the same moment.
            self.not_before = max(self.not_before, now + retry_after_s * random.uniform(1, 1.1))  # noqa: S311


def pause_s(failures: int, longest_s: float = LONGEST_PAUSE_S) -> float:
    """Return the pause after so many failures."""
    longest = min(longest_s, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
    return random.uniform(longest / 2, longest)  # noqa: S311 (jitter)
