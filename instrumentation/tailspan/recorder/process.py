"""The recorder of this process: one ring per thread, created on first use.

A ring of a thread that ended is reused by the next new thread, so the number of files is the largest number of
threads that recorded at the same time. After a fork the child starts with rings of its own.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

from tailspan.guard import Guard
from tailspan.recorder.ring import RingWriter
from tailspan.settings import WORKER_DIR, Settings

now_ns = time.monotonic_ns
"""The clock of every record: CLOCK_MONOTONIC, shared by all processes of a host."""

_GUARD = Guard("recorder")


class _Lease:
    """A thread's hold on a ring; when the thread ends its locals die and the ring is free again."""

    __slots__ = ("owner", "ring")

    def __init__(self, owner: _ProcessRecorder, ring: RingWriter) -> None:
        self.owner = owner
        self.ring = ring

    def __del__(self) -> None:
        self.owner.free.append(self.ring)


class _ProcessRecorder:
    """All rings of one process."""

    def __init__(self, directory: Path, slots: int) -> None:
        self.directory = directory
        self.slots = slots
        self.local = threading.local()
        self.free: list[RingWriter] = []
        self.all: list[RingWriter] = []
        self.numbers = itertools.count()

    def ring(self) -> RingWriter:
        try:
            lease: _Lease = self.local.lease
        except AttributeError:
            lease = self.local.lease = _Lease(self, self._new_ring())
        return lease.ring

    def _new_ring(self) -> RingWriter:
        try:
            return self.free.pop()
        except IndexError:
            number = next(self.numbers)
        ring = RingWriter(self.directory / f"{os.getpid()}-{number}.ring", self.slots, number)
        self.all.append(ring)
        return ring


_recorder: _ProcessRecorder | None = None


def start(settings: Settings) -> Path:
    """Open the recorder of this process; return the worker folder, which children inherit through the environment."""
    global _recorder
    if _recorder is None:
        inherited = os.environ.get(WORKER_DIR)
        directory = Path(inherited) if inherited else new_worker_dir(settings)
        os.environ[WORKER_DIR] = str(directory)
        _recorder = _ProcessRecorder(directory, settings.ring_records)
    return _recorder.directory


def new_worker_dir(settings: Settings) -> Path:
    """Create the private folder of a new worker tree."""
    settings.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = settings.runtime_dir / f"worker-{os.getpid()}-{time.time_ns():x}"
    directory.mkdir(mode=0o700)
    return directory


def is_started() -> bool:
    """Whether this process records."""
    return _recorder is not None


def ring() -> RingWriter:
    """Return the ring of the calling thread; raises `RuntimeError` when the recorder is not started."""
    if _recorder is None:
        raise RuntimeError("the recorder is not started: call tailspan.instrument() first")
    return _recorder.ring()


def close() -> None:
    """Tell the agent that this process records no more. Records already written are still delivered."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        for ring_ in recorder.all:
            ring_.mark_closed()


def wait_delivered(directory: str, timeout_s: float) -> bool:
    """Wait until the agent has removed the worker folder, its last act after everything is delivered."""
    deadline = time.monotonic() + timeout_s
    while Path(directory).exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _forget_after_fork() -> None:
    global _recorder
    if _recorder is not None:
        with _GUARD:
            _recorder = _ProcessRecorder(_recorder.directory, _recorder.slots)


os.register_at_fork(after_in_child=_forget_after_fork)
