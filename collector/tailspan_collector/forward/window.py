"""The requests that a courier works on: which is tried next, and when one is given up.

A request that fails waits ever longer for its next try while others are tried, so that one bad request does not hide
that the destination is well. It is given up only on evidence: it was overtaken so often, that is, it failed again
after the destination had taken others since its last failure; or it is older than the bound.
Times are those of `time.monotonic`, seconds, except `received_ns`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailspan_collector.forward.pace import LONGEST_PAUSE_S, pause_s

MOST_OVERTAKEN, MOST_OVERTAKEN_CLEAR = 5, 100
"""Failures of a request while others got through, until it is given up; `CLEAR` where the answer says "later"."""
_LONGEST_WAIT_UNCLEAR_S = 5.0  # so that it is known within half a minute whose fault it is


@dataclass(slots=True, order=True)
class Item:
    """One request on its way; ordered by when it may be tried."""

    due: float = field(init=False, default=0.0)
    payload: bytes = field(compare=False)
    received_ns: int = field(compare=False, default=0)
    tries: int = field(init=False, compare=False, default=0)
    overtaken: int = field(init=False, compare=False, default=0)
    is_done: bool = field(init=False, compare=False, default=False)
    others_taken: int = field(init=False, compare=False, default=0)
    """How many requests the destination had taken when this one last failed."""


class Window:
    """Requests in order; the caller serialises."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.items = list(items)
        self._fresh = deque(self.items)
        self._waiting: list[Item] = []
        self._sending = 0
        self._taken = 0

    @property
    def is_done(self) -> bool:
        """Whether every request was taken or given up."""
        return not (self._fresh or self._waiting or self._sending)

    @property
    def done_prefix(self) -> int:
        """How many requests from the first on are done without a gap."""
        return next((number for number, item in enumerate(self.items) if not item.is_done), len(self.items))

    @property
    def is_stuck(self) -> bool:
        """Whether only requests are left that have failed and wait: others should be tried beside them."""
        return bool(self._waiting) and not self._fresh and not self._sending

    def extend(self, items: Iterable[Item]) -> None:
        """Add requests behind the last."""
        added = list(items)
        self.items.extend(added)
        self._fresh.extend(added)

    def next(self, now: float) -> Item | None:
        """Take the request to try: never tried ones first, in order, then the one that has waited longest."""
        if self._fresh:
            item = self._fresh.popleft()
        elif self._waiting and self._waiting[0].due <= now:
            item = heapq.heappop(self._waiting)
        else:
            return None
        self._sending += 1
        return item

    def next_due(self) -> float | None:
        """Return from when on `next` has a request, None if all that is left is under way."""
        if self._fresh:
            return 0.0
        return self._waiting[0].due if self._waiting else None

    def take_older(self, oldest_ns: int) -> list[Item]:
        """Give up and return the requests that were received before and are not under way."""
        found = []
        while self._fresh and self._fresh[0].received_ns < oldest_ns:
            found.append(self._fresh.popleft())
        old = [item for item in self._waiting if item.received_ns < oldest_ns]
        if old:
            self._waiting = [item for item in self._waiting if item.received_ns >= oldest_ns]
            heapq.heapify(self._waiting)
        for item in (*found, *old):
            item.is_done = True
        return found + old

    def taken(self, item: Item) -> None:
        """Note that the destination took a request."""
        self.given_up(item)
        self._taken += 1

    def given_up(self, item: Item) -> None:
        """Note that a request that was tried will not be tried again."""
        self._sending -= 1
        item.is_done = True

    def failed(self, item: Item, now: float, is_clear: bool) -> bool:
        """Note a failed try; return whether the request is given up by it."""
        item.tries += 1
        if item.tries > 1 and self._taken > item.others_taken:
            item.overtaken += 1
        item.others_taken = self._taken
        if item.overtaken >= (MOST_OVERTAKEN_CLEAR if is_clear else MOST_OVERTAKEN):
            self.given_up(item)
            return True
        self._sending -= 1
        item.due = now + pause_s(item.tries, LONGEST_PAUSE_S if is_clear else _LONGEST_WAIT_UNCLEAR_S)
        heapq.heappush(self._waiting, item)
        return False
