"""Which requests came lately, so that one whose acknowledgement was lost is recognised when it is sent again.

The window is what `Spool` keeps on disk and at most `SEGMENTS` segments of `log.RECORDS_PER_SEGMENT` requests, so that
memory is bounded. A match of the checksum is only a hint; what decides is that all bytes are equal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tailspan_collector.spool.segments import segment_path

SEGMENTS = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a request lie."""

    segment: int
    start: int
    end: int


class Recent:
    """Checksums of the requests of the newest segments; not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments: dict[int, dict[int, tuple[int, int]]] = {}

    def add(self, payload_digest: int, place: Place) -> None:
        """Remember a request; segments must come in order."""
        requests = self._segments.get(place.segment)
        if requests is None:
            requests = self._segments[place.segment] = {}
            while len(self._segments) > SEGMENTS:
                del self._segments[next(iter(self._segments))]
        requests[payload_digest] = (place.start, place.end)

    def holds(self, payload_digest: int, payload: bytes) -> bool:
        """Whether a request of exactly these bytes is there."""
        for segment, requests in self._segments.items():
            span = requests.get(payload_digest)
            if span is not None and self._read(segment, *span) == payload:
                return True
        return False

    def forget(self, segment: int) -> None:
        """Forget the requests of a segment."""
        self._segments.pop(segment, None)

    def _read(self, segment: int, start: int, end: int) -> bytes | None:
        try:
            with segment_path(self._folder, segment).open("rb") as file:
                return os.pread(file.fileno(), end - start, start)
        except FileNotFoundError:
            return None
