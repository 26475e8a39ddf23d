"""The segment files of a spool: their names, the one being written, and the removal of those that were read.

A process never appends to a segment of an earlier one, so a torn tail stays where the crash left it.
Units: sizes in bytes, ages in seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tailspan_collector.files import sync_folder

_MOST_BUFFERS = 512  # below the least IOV_MAX that POSIX systems have, 1024


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"{number:016}.log"


def segment_sizes(folder: Path) -> dict[int, int]:
    """Return number -> size of the segments in a folder, in order."""
    return {int(path.stem): path.stat().st_size for path in sorted(folder.glob("*.log"))}


class SegmentWriter:
    """Appends to one new segment, durably and all or nothing."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.size = 0
        self._descriptor = os.open(segment_path(folder, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        sync_folder(folder)

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write and fsync; on an error nothing of it stays.

        Raises:
            OSError: the disk is full or broken.
        """
        try:
            for first in range(0, len(buffers), _MOST_BUFFERS):
                self._write(buffers[first : first + _MOST_BUFFERS])
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            os.lseek(self._descriptor, self.size, os.SEEK_SET)
            raise
        self.size += sum(map(len, buffers))

    def _write(self, buffers: Sequence[bytes]) -> None:
        written = os.writev(self._descriptor, buffers)
        if written < sum(map(len, buffers)):
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def remove_read(folder: Path, before: int, keep_seconds: float, keep_bytes: int) -> list[int]:
    """Remove segments below number `before` that are old, or beyond `keep_bytes`; return their numbers.

    Segments that were read stay for a while, so that a request that is sent again is recognised.
    """
    removed, kept = [], 0
    for number, size in reversed(segment_sizes(folder).items()):
        if number >= before:
            continue
        kept += size
        path = segment_path(folder, number)
        if kept > keep_bytes or time.time() - path.stat().st_mtime > keep_seconds:
            path.unlink()
            removed.append(number)
    return removed
