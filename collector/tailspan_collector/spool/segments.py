"""The segment files of a spool: their names, the one being written, and bytes that were found damaged.

A process never appends to a segment of an earlier one, so a torn tail stays where the crash left it.
Units: sizes in bytes.
"""

from __future__ import annotations

import contextlib
import os
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
        """Create the file.

        Raises:
            OSError: the disk is full or broken.
        """
        self.number = number
        self.size = 0
        self._path = segment_path(folder, number)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        sync_folder(folder)

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write and fsync; on an error nothing of it counts, and nothing more must be appended to this segment.

        After a failed fsync nobody knows which pages reached the disk, so that trying again would prove nothing.

        Raises:
            OSError: the disk is full or broken.
        """
        try:
            for first in range(0, len(buffers), _MOST_BUFFERS):
                self._write(buffers[first : first + _MOST_BUFFERS])
            os.fdatasync(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
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


def keep_aside(folder: Path, segment: int, start: int, data: bytes) -> bool:
    """Copy damaged bytes into a file of their own, for people to look at; False if that was done before.

    Raises:
        OSError: the disk is full or broken.
    """
    path = folder / f"damaged-{segment:016}-{start}.bin"
    if path.exists():
        return False
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)
    return True
