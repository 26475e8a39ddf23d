"""A small state on disk that is replaced as a whole, and can be replaced on a full disk.

The file has two slots of a fixed size, written in turn and in place: a crash in the middle of one leaves the other, and
as the blocks are there from the start, saving needs no free space. Were it otherwise, a full disk could not be emptied:
the writer notes what it is about to store before it stores it.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from tailspan_collector.files import sync_folder

_SLOT_BYTES = 8192


class StateFile:
    """A JSON object on disk; one owner."""

    def __init__(self, path: Path) -> None:
        """Open or create it.

        Raises:
            OSError: it cannot be created.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found = [_parse(os.pread(self._descriptor, _SLOT_BYTES, slot * _SLOT_BYTES)) for slot in (0, 1)]
        self._serial, self.value = max(
            (item for item in found if item is not None), key=lambda item: item[0], default=(0, {})
        )
        """The state; `{}` if nothing was saved yet."""
        missing = 2 * _SLOT_BYTES - os.fstat(self._descriptor).st_size
        if missing > 0:
            os.pwrite(self._descriptor, b" " * missing, 2 * _SLOT_BYTES - missing)
            os.fsync(self._descriptor)
            sync_folder(path.parent)

    def save(self, value: dict[str, Any]) -> None:
        """Replace the state durably.

        Raises:
            OSError: the disk is broken; the state before is still there.
            ValueError: the state does not fit.
        """
        text = json.dumps({"serial": self._serial + 1, **value}, separators=(",", ":")).encode()
        line = b"%08x %s" % (zlib.crc32(text), text)
        if len(line) >= _SLOT_BYTES:
            raise ValueError(f"a state of {len(line)} bytes does not fit into {_SLOT_BYTES}")
        os.pwrite(self._descriptor, line.ljust(_SLOT_BYTES - 1) + b"\n", (self._serial + 1) % 2 * _SLOT_BYTES)
        os.fdatasync(self._descriptor)
        self._serial, self.value = self._serial + 1, value

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
        self._descriptor = -1  # a writer that comes too late must not hit another file of this number


def _parse(slot: bytes) -> tuple[int, dict[str, Any]] | None:
    crc, _, text = slot.strip().partition(b" ")
    try:
        if int(crc, 16) != zlib.crc32(text):
            return None
        value = json.loads(text)
    except ValueError:
        return None
    return value.pop("serial"), value
