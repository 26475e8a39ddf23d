"""A device that looks like `torch.cuda`, with a programmable course of its own; for tests of what times a device.

Streams run what is launched on them in order; an event is passed when its stream reaches it. The device's clock drifts
against the host's, stamps in ticks, and tells differences as 32-bit milliseconds, as the real one does. Whatever a
timer must not do raises `AssertionError`: waiting, recording or asking during a graph capture, recording an event again
before it was passed, touching the device from a forked child.

`fake_graphs` extends it by graphs that are replayed.

Units: ns. Host time is virtual (`advance` moves it) unless `real_time`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

NEVER = math.inf
ERROR = "CUDA error: an illegal memory access was encountered"
_float32 = ctypes.c_float


class FakeStream:
    """A queue of work: `free_ns` is the host time at which all that was launched on it so far will be done."""

    def __init__(self, device: FakeDevice, handle: int) -> None:
        self.device = device
        self.cuda_stream = handle
        self.free_ns: float = 0

    def hang(self) -> None:
        """Never get any further."""
        self.free_ns = NEVER

    def wait_stream(self, other: FakeStream) -> None:
        """Begin what follows when the other stream has got here."""
        self.free_ns = max(self.free_ns, other.free_ns)

    def synchronize(self) -> NoReturn:
        """Fail the test."""
        self.device.synchronize()


class FakeEvent:
    """`torch.cuda.Event`; `passed_ns` is the host time at which the device passes it."""

    __slots__ = ("_stamped", "device", "generation", "passed_ns", "timed")

    def __init__(self, device: FakeDevice, *, timed: bool) -> None:
        device.check()
        self.device = device
        self.timed = timed
        self.generation = device.generation
        self.passed_ns: float | None = None
        self._stamped: tuple[float, float] = (NEVER, NEVER)
        device.live += 1
        device.created += 1

    def __del__(self) -> None:
        self.device.live -= 1
        if self.device.is_forked:
            self.device.touched_by_child = True

    def record(self, stream: FakeStream | None = None) -> None:
        """Be passed when the stream gets here."""
        device = self.device
        if stream is None:
            stream = device.current_stream()
        if device.is_special or self.generation != device.generation:
            self._refuse("recorded")
        self.follow(stream, max(device.now() + device.latency(), stream.free_ns))
        if device.scatter is not None:
            self.passed_ns = stream.free_ns + device.scatter()

    def follow(self, stream: FakeStream, at_ns: float) -> None:
        """Be passed at this time, in place of an earlier one that is over."""
        passed_ns = self.passed_ns
        assert passed_ns is None or passed_ns <= self.device.now(), "an event was recorded again before it was passed"
        self.passed_ns = stream.free_ns = at_ns

    def query(self) -> bool:
        """Whether the host can see that the device has passed the event."""
        device = self.device
        if device.is_special or self.generation != device.generation:
            self._refuse("asked for")
        return self.passed_ns is None or device.now() >= self.passed_ns + device.visible_ns

    def elapsed_time(self, end: FakeEvent) -> float:
        """Return the milliseconds from this event to another, both passed."""
        device, now_ns = self.device, self.device.now()
        if device.is_special or not self.generation == end.generation == device.generation:
            self._refuse("read")
        if self.passed_ns is None or end.passed_ns is None or not self.timed or not end.timed:
            raise RuntimeError("CUDA error: invalid argument")
        if max(self.passed_ns, end.passed_ns) > now_ns:
            raise RuntimeError("CUDA error: device not ready")
        return _float32((end._stamp(end.passed_ns) - self._stamp(self.passed_ns)) / 1e6).value

    def hold(self) -> None:
        """Not be passed, whatever the stream does, until `let_go`."""
        self.passed_ns = NEVER

    def let_go(self) -> None:
        """Be passed now."""
        self.passed_ns = self.device.now()

    def synchronize(self) -> NoReturn:
        """Fail the test."""
        self.device.synchronize()

    wait = synchronize

    def _stamp(self, passed_ns: float) -> float:
        if self._stamped[0] != passed_ns:
            self._stamped = (passed_ns, self.device.stamp(passed_ns))
        return self._stamped[1]

    def _refuse(self, what: str) -> NoReturn:
        self.device.check()
        assert not self.device.capturing, f"an event was {what} during a graph capture"
        raise RuntimeError("CUDA error: invalid resource handle")


class FakeDevice:
    """The device and its API in one: hand it to `CudaTimer` as `api`, and `now` as its clock."""

    def __init__(self, *, drift_ppm: float = 0, latency_ns: int = 5_000, real_time: bool = False) -> None:
        self.is_forked = self.is_special = False
        """Special: a child's, failed, or capturing; calls look closer only then."""
        self.now: Callable[[], int] = time.monotonic_ns if real_time else self._virtual_now
        self.host_ns = 10**12
        self.visible_ns = 1_000
        """From the moment at which the device passes an event to the first query that tells so."""
        self.tick_ns = 500
        """Step of the device's stamps."""
        self.latency: Callable[[], int] = lambda: latency_ns
        """From the launch to the earliest begin."""
        self.scatter: Callable[[], float] | None = None
        """How much later than its stream got there an event is passed: completion out of order, or never."""
        self.capturing = False
        self.live = self.created = self.synchronized = self.generation = 0
        self.touched_by_child = False
        self._failed = False
        self._rates: list[tuple[float, float, float]] = [(self.now(), 7e14, 1 + drift_ppm / 1e6)]
        self._streams = 0
        self._current = self.Stream()
        _devices.add(self)

    def advance(self, ns: int) -> None:
        """Let host time pass."""
        self.host_ns += ns

    def launch(self, kernel_ns: int) -> None:
        """Launch a kernel on the current stream."""
        self.check()
        self._current.free_ns = max(self.now() + self.latency(), self._current.free_ns) + kernel_ns

    def drift(self, ppm: float) -> None:
        """Run faster or slower from now on than the host's clock."""
        now_ns = self.now()
        self._rates.append((now_ns, self._clock(now_ns), 1 + ppm / 1e6))

    def stamp(self, host_ns: float) -> float:
        """Return the device's clock at a host time, in its ticks."""
        return self._clock(host_ns) // self.tick_ns * self.tick_ns

    def Stream(self) -> FakeStream:  # noqa: N802 (as torch.cuda spells it)
        """Return a new stream."""
        self._streams += 1
        return FakeStream(self, self._streams * 64)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Have another current stream."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Capture a graph."""
        self.capturing = self.is_special = True
        try:
            yield
        finally:
            self.capturing, self.is_special = False, self._failed

    def fail(self) -> None:
        """Answer every call with an error, as CUDA does after a fault."""
        self._failed = self.is_special = True

    def recover(self) -> None:
        """Work again; events from before are invalid."""
        self._failed = self.is_special = False
        self.generation += 1

    def check(self) -> None:
        """Raise what a call would raise now."""
        if self.is_forked:
            self.touched_by_child = True
            raise AssertionError("a forked child touched the device")
        if self._failed:
            raise RuntimeError(ERROR)

    def Event(self, *, enable_timing: bool = False, **_: Any) -> FakeEvent:  # noqa: N802
        """Return a new event."""
        return FakeEvent(self, timed=enable_timing)

    def current_stream(self, device: int | None = None) -> FakeStream:
        """Return the stream that is current."""
        if self.is_special:
            self.check()
        return self._current

    def is_current_stream_capturing(self) -> bool:
        """Whether a graph is being captured."""
        if self.is_special:
            self.check()
        return self.capturing

    def synchronize(self, device: int | None = None) -> NoReturn:
        """Fail the test."""
        self.synchronized += 1
        raise AssertionError("the host waited for the device")

    def _virtual_now(self) -> int:
        return self.host_ns

    def _clock(self, host_ns: float) -> float:
        since_ns, clock_ns, rate = self._rates[-1]
        if host_ns < since_ns:
            since_ns, clock_ns, rate = next(
                (piece for piece in self._rates[::-1] if piece[0] <= host_ns), self._rates[0]
            )
        return clock_ns + (host_ns - since_ns) * rate


_devices: weakref.WeakSet[FakeDevice] = weakref.WeakSet()


def _mark_forked() -> None:
    for device in _devices:
        device.is_forked = device.is_special = True


os.register_at_fork(after_in_child=_mark_forked)
