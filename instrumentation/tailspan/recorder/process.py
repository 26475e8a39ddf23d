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

from tailspan.guard import Guard, logger
from tailspan.ids import new_span_id
from tailspan.recorder.ring import RingWriter
from tailspan.settings import WORKER_DIR, Settings

now_ns = time.monotonic_ns
"""The clock of every record: CLOCK_MONOTONIC, shared by all processes of a host."""

_GUARD = Guard("recorder")


RETRY_S = 1.0
"""Seconds from a ring that could not be made to the next try."""
MAX_RINGS = 256
"""Rings of one process, so at most this many times the ring size of shared memory; further threads record nothing."""


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

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.directory = directory
        self.settings = settings
        self.local = threading.local()
        self.free: list[RingWriter] = []
        self.all: list[RingWriter] = []
        self.numbers = itertools.count()
        self.nowhere = Nowhere()
        self.retry_at = 0.0

    def lease(self) -> RingWriter:
        """Give the calling thread a ring for good, or the one that keeps nothing for now."""
        if time.monotonic() < self.retry_at:
            return self.nowhere
        try:
            ring = self.free.pop() if self.free else self._new_ring()
        except (OSError, IndexError) as error:
            self.retry_at = time.monotonic() + RETRY_S
            self.nowhere.warn(error)
            return self.nowhere
        self.local.lease = _Lease(self, ring)
        self.local.ring = ring
        return ring

    def _new_ring(self) -> RingWriter:
        number = next(self.numbers)
        if number >= MAX_RINGS:
            raise OSError(f"{MAX_RINGS} threads already record")
        ring = RingWriter(self.directory / f"{os.getpid()}-{number}.ring", self.settings.ring_records, number)
        self.all.append(ring)
        return ring


class Nowhere(RingWriter):
    """Takes the records of a thread for which there is no ring, and keeps none."""

    __slots__ = ("_warned",)

    def __init__(self) -> None:
        self._warned = False

    def warn(self, error: Exception) -> None:
        """Say so once."""
        if not self._warned:
            self._warned = True
            logger.warning("tailspan: no room for a ring, so some requests are not traced: %s", error)

    def record(self, *_: object) -> None:
        """Keep nothing."""

    def double(self, *_: object) -> None:
        """Keep nothing."""

    def begin(self, *_: object) -> bool:
        """Return that there is no room."""
        return False

    def queued(self, *_: object) -> None:
        """Keep nothing."""

    def step(self, *_: object) -> None:
        """Keep nothing."""

    def chunk(self, *_: object) -> None:
        """Keep nothing."""

    def text(self, *_: object) -> None:
        """Keep nothing."""

    def note(self, *_: object, **__: object) -> None:
        """Keep nothing."""

    def new_ids(self) -> tuple[int, int, int]:
        """Return three times 64 random bits."""
        return new_span_id(), new_span_id(), new_span_id()

    def reserve(self, records: int) -> bool:  # noqa: ARG002
        """Return that there is no room."""
        return False

    def drop(self, records: int) -> None:
        """Count nothing: the process has said that it does not record."""

    def string(self, value: str, max_bytes: int = 0) -> int:  # noqa: ARG002
        """Return the id of no string."""
        return 0


_recorder: _ProcessRecorder | None = None

unrecorded: set[int] = set()
"""Keys of requests under way that found no room: whatever else happens to them is not recorded either."""


def start(settings: Settings) -> Path:
    """Open the recorder of this process; return the worker folder, which children inherit through the environment.

    Raises:
        OSError: the folder cannot be made.
    """
    global _recorder
    if _recorder is None:
        inherited = os.environ.get(WORKER_DIR)
        directory = Path(inherited) if inherited else new_worker_dir(settings)
        os.environ[WORKER_DIR] = str(directory)
        _recorder = _ProcessRecorder(directory, settings)
    return _recorder.directory


def new_worker_dir(settings: Settings) -> Path:
    """Create the private folder of a new worker tree.

    Raises:
        OSError: no permission, or another user owns the parent folder.
    """
    parent = settings.runtime_dir
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user")
    directory = parent / f"worker-{os.getpid()}-{time.time_ns():x}"
    directory.mkdir(mode=0o700)
    return directory


def is_started() -> bool:
    """Whether this process records."""
    return _recorder is not None


def tells_callers() -> bool:
    """Whether callers get the engine's times with their answers."""
    return _recorder is not None and _recorder.settings.server_timing


def device_timing() -> bool:
    """Whether steps are timed by the device's own clock."""
    return _recorder is not None and _recorder.settings.device_timing


def layer_budget() -> float:
    """Return the share of the steps' time that timing the layers of some of them may cost; 0: time none."""
    return _recorder.settings.layer_budget if _recorder is not None else 0.0


def ring() -> RingWriter:
    """Return the ring of the calling thread; raises `RuntimeError` when the recorder is not started."""
    try:
        own: RingWriter = _recorder.local.ring  # type: ignore[union-attr] # None has no such attribute either
    except AttributeError:
        if _recorder is None:
            raise RuntimeError("the recorder is not started: call tailspan.instrument() first") from None
        return _recorder.lease()
    return own


def close() -> bool:
    """Tell the agent that this process records no more; return whether it recorded anything.

    Records already written are still delivered.
    """
    global _recorder
    recorder, _recorder = _recorder, None
    unrecorded.clear()
    if recorder is None:
        return False
    for ring_ in recorder.all:
        ring_.mark_closed()
    return bool(recorder.all)


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
            _recorder = _ProcessRecorder(_recorder.directory, _recorder.settings)


os.register_at_fork(after_in_child=_forget_after_fork)
