"""The clock of a CPU: the host's own, so that every mark is done at once and exact."""

from __future__ import annotations

from collections.abc import Iterable

from tailspan.device.timer import HostTime
from tailspan.recorder.process import now_ns


class HostTimer:
    """Times work that the calling thread computes itself. A mark is an int, a `now_ns()` value."""

    __slots__ = ("epoch", "kind")

    record = staticmethod(now_ns)

    def __init__(self) -> None:
        self.kind = "cpu"
        self.epoch = 0

    def is_done(self, mark: int) -> bool:  # noqa: ARG002
        """Return True: what is recorded has happened."""
        return True

    def elapsed_ns(self, begin: int, end: int) -> int:
        """Return the time from one mark to the other."""
        return end - begin

    def host_time(self, mark: int) -> HostTime:
        """Return the mark itself."""
        return HostTime(mark, 0)

    def release(self, marks: Iterable[int]) -> None:
        """Do nothing: numbers need no giving back."""
