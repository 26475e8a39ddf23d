"""The clock of a CUDA or ROCm device: pooled events on the engine's own stream, read only once they are done.

A mark is an event that was recorded on the stream that is current at that time, between the engine's kernels. Nothing
here synchronises, waits, or asks the driver for a callback. An event's time is stamped in ticks of about 0.5 us.

* **Streams.** Times of marks in different streams do not say what ran when, so a timer follows one stream: the first in
  which it records. A mark in another is refused, unless no mark is out at all: then that stream is followed from there
  on. Whoever holds marks and is refused again and again gives them all back (`StepProbe` does), and has the new stream.
* **Giving back.** An event that is given back before the device has passed it waits until it has. CUDA allows to record
  it again at once, but its first passing could then be taken for the second, on another stream or a failing device.
  It is asked for when an event is needed, so one that never completes costs its place in the pool and nothing more.
* **Graph capture.** Recording or querying an event would become part of the graph, or end its capture with an error, so
  during a capture there are no marks and none is done. A capture by another thread cannot be seen.
* **Failure.** When the device or its API fails, the timer is `broken`: it forgets its events, gives no marks and tells
  no times, until `restart()`. So it is in a forked child, for good: a CUDA context does not survive a fork.

Used by one thread. `api` is `torch.cuda` or what looks like it.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from tailspan.device.event_clock import EventClock
from tailspan.device.timer import UNKNOWN, HostTime
from tailspan.guard import logger
from tailspan.recorder.process import now_ns

CAPACITY: Final = 4096
"""Events of one timer: two for each step under way, and in a sampled step one for each part of the model."""
VISIBLE_NS: Final = 5_000
"""An event that is not seen to be done can have been passed for this long: the way from the device to the host."""
_RECLAIM: Final = 4
"""Events given back too early that are looked at when one is needed."""


class CudaMark:
    """An event of the pool and the host times around its passing; `seen_ns` is 0 until it is seen to be done."""

    __slots__ = ("earliest_ns", "event", "held", "recorded_ns", "seen_ns")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.recorded_ns = self.earliest_ns = self.seen_ns = 0
        self.held = False


class CudaTimer:
    """Times work on one device. `skipped`, `refused`, `captured` and `failures` count the marks that were not given."""

    __slots__ = (
        "__weakref__", "_all", "_capacity", "_capturing", "_clock", "_current_stream", "_device", "_early", "_free",
        "_held", "_now", "_off", "_stream", "api", "captured", "epoch", "failures", "forked", "kind", "refused",
        "skipped",
    )  # fmt: skip

    def __init__(
        self, api: Any, device: int, kind: str, capacity: int = CAPACITY, now: Callable[[], int] = now_ns
    ) -> None:
        """Take the API, the device's index, `cuda` or `rocm`; touches the device at the first `record()` only."""
        self.kind = kind
        self.epoch = 0
        self.skipped = self.refused = self.captured = self.failures = 0
        self.forked = False
        self.api = api
        self._device = device
        self._capacity = capacity
        self._now = now
        self._capturing = api.is_current_stream_capturing
        self._current_stream = api.current_stream
        self._clock = EventClock(_elapsed_ms)
        self._all: list[CudaMark] = []
        self._off = False
        self._start()
        _timers.add(self)

    @property
    def broken(self) -> bool:
        """Whether it gives no marks and tells no times any more."""
        return self._off

    @property
    def outstanding(self) -> int:
        """Marks that are out, and those given back that the device has not passed yet."""
        return self._held + len(self._early)

    def record(self) -> CudaMark | None:
        """Return a mark at this point of the current stream, or None, counted."""
        if self._off:
            return None
        try:
            if self._capturing():
                self.captured += 1
                return None
            stream = self._current_stream(self._device)
            if stream.cuda_stream != self._stream and not self._follow(stream.cuda_stream):
                self.refused += 1
                return None
            mark = self._free.pop() if self._free else self._another()
            if mark is None:
                self.skipped += 1
                return None
            mark.recorded_ns = mark.earliest_ns = self._now()
            mark.event.record(stream)
        except RuntimeError as error:
            self._fail(error)
            return None
        mark.held = True
        self._held += 1
        return mark

    def is_done(self, mark: CudaMark) -> bool:
        """Whether the device has passed the mark; never waits. False for good for one from before a failure."""
        if mark.seen_ns:
            return True
        if self._off or not mark.held:
            return False
        try:
            if self._capturing():
                return False
            asked_ns = self._now()
            if mark.event.query():
                mark.seen_ns = self._now()
                return True
        except RuntimeError as error:
            self._fail(error)
            return False
        mark.earliest_ns = max(mark.earliest_ns, asked_ns - VISIBLE_NS)
        return False

    def elapsed_ns(self, begin: CudaMark, end: CudaMark) -> int:
        """Return the device time from one mark to the other, or `UNKNOWN` unless both are done."""
        if not (begin.seen_ns and end.seen_ns) and not (self.is_done(begin) and self.is_done(end)):
            return UNKNOWN
        try:
            return round(_elapsed_ms(begin.event, end.event) * 1e6)
        except RuntimeError as error:
            self._fail(error)
            return UNKNOWN

    def host_time(self, mark: CudaMark) -> HostTime | None:
        """Return when the device passed the mark, on the host's clock; None unless it is done."""
        if not (mark.seen_ns or self.is_done(mark)):
            return None
        reference = self._clock.reference
        try:
            moment = self._clock.host_time(mark)
        except RuntimeError as error:
            self._fail(error)
            return None
        if isinstance(reference, CudaMark) and reference is not self._clock.reference and not reference.held:
            self._free.append(reference)
        return moment

    def release(self, marks: Iterable[CudaMark]) -> None:
        """Give marks back, done or not; those from before a failure are ignored."""
        for mark in marks:
            if not mark.held:
                continue
            mark.held = False
            self._held -= 1
            if not mark.seen_ns:
                self._early.append(mark)
                continue
            mark.seen_ns = 0
            if mark is not self._clock.reference:
                self._free.append(mark)

    def restart(self) -> bool:
        """Use the device again after a failure, with new events; False in a forked child."""
        if self._off and not self.forked:
            self._off = False
        return not self._off

    def _start(self) -> None:
        """Have no events."""
        self._free: list[CudaMark] = []
        self._early: deque[CudaMark] = deque()
        self._held = 0
        self._stream: int | None = None

    def _another(self) -> CudaMark | None:
        """Return an event that was given back early and is done by now, or a new one, or None at the bound."""
        early = self._early
        for _ in range(min(_RECLAIM, len(early))):
            mark = early.popleft()
            if mark.event.query():
                return mark
            early.append(mark)
        if len(self._all) >= self._capacity:
            return None
        mark = CudaMark(self.api.Event(enable_timing=True))
        self._all.append(mark)
        return mark

    def _follow(self, stream: int) -> bool:
        """Take another stream from here on; False, and stay with the old one, while marks of it are out."""
        while self._early and self._early[0].event.query():
            self._free.append(self._early.popleft())
        if self._held or self._early:
            return False
        self._stream = stream
        return True

    def _fail(self, error: RuntimeError) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning("tailspan: the device failed, so steps are not timed from now on: %s", str(error))
        for mark in self._all:
            mark.event = None
        self._stop()

    def _stop(self) -> None:
        """Give nothing any more; all marks are worthless."""
        self.epoch += 1
        for mark in self._all:
            mark.held, mark.seen_ns = False, 0
        self._all = []
        self._clock.forget()
        self._off = True
        self._start()

    def _leave_to_parent(self) -> None:
        """Stop in a forked child; even to destroy an event would touch the context, so they stay."""
        _parents_events.append(self._all)
        self.forked = True
        self._stop()


def _elapsed_ms(begin: Any, end: Any) -> float:
    elapsed: float = begin.elapsed_time(end)
    return elapsed


_timers: weakref.WeakSet[CudaTimer] = weakref.WeakSet()
_parents_events: list[list[CudaMark]] = []


def _stop_after_fork() -> None:
    for timer in _timers:
        timer._leave_to_parent()


os.register_at_fork(after_in_child=_stop_after_fork)
