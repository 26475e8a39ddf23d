"""Ids of the spans that the agent makes; those of requests come from the ring or the caller.

Random ones are like those of `tailspan.ids`, with one system call for many. Ids of stages and steps have bytes in
common with those of their neighbours, so that a table in the order of traces takes fewer bytes (docs/adr/0012).
Source: W3C Trace Context, level 2, "Randomness of trace-id": its last 7 bytes are random.
"""

from __future__ import annotations

import os
import struct

_ID = struct.Struct("=Q")
_IDS_AT_ONCE = 512
_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1


class Ids:
    """The ids of one worker; used by one thread."""

    def __init__(self) -> None:
        self._pool: list[int] = []
        self._worker = self.span() >> 24 | 1

    def span(self) -> int:
        """Return a non-zero random 64-bit id."""
        if not self._pool:
            self._pool = [number for (number,) in _ID.iter_unpack(os.urandom(_ID.size * _IDS_AT_ONCE)) if number]
        return self._pool.pop()

    def trace(self) -> int:
        """Return a non-zero random 128-bit id."""
        return self.span() << 64 | self.span()

    def stage(self, request_id: int, number: int) -> int:
        """Return the span id of a stage, `number` from 0: the request's with another last byte, while there are any."""
        last = number + 1 if number + 1 < request_id & 0xFF else number + 2
        return self.span() if last > 0xFF else request_id & ~0xFF | last

    def step(self, number: int) -> tuple[int, int]:
        """Return trace id (5 bytes of the worker, 4 of the step's number, 7 random) and span id (4 and 4 of them)."""
        begin = self._worker << 32 | number & _MASK_32
        return begin << 56 | self.span() >> 8, begin & _MASK_64


def layer_id(step_id: int, number: int) -> int:
    """Return the span id of a part of the model, `number` from 0: the step's with other bits of the worker."""
    return step_id ^ number + 1 << 32
