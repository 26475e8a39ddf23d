"""The rings of one worker tree: which there are, what they say, and whether their processes live."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tailspan.agent.decode import Event, RingDecoder
from tailspan.recorder.reader import RingReader

logger = logging.getLogger("tailspan.agent")


@dataclass(slots=True)
class _Ring:
    reader: RingReader
    decoder: RingDecoder = field(default_factory=RingDecoder)
    broken: bool = False


class WorkerRings:
    """Reads every ring in a worker folder."""

    def __init__(self, directory: Path) -> None:
        """Look at `directory`; it may still be empty, and `discover` finds what comes."""
        self.directory = directory
        self._rings: dict[Path, _Ring] = {}
        self._dead: set[int] = set()

    def read(self) -> Iterator[tuple[int, list[Event]]]:
        """Yield (pid, events) of every ring that has settled records."""
        for path, ring in self._rings.items():
            if ring.broken:
                continue
            slots = ring.reader.read()
            if not slots:
                continue
            try:
                events = list(ring.decoder.decode(slots))
            except ValueError:
                ring.broken = True
                logger.exception(
                    "ring %s holds a record that this agent does not know; it is not read any further", path
                )
                continue
            yield ring.reader.header.pid, events

    @property
    def pending(self) -> bool:
        """Whether a ring has records that `read` has not handed out."""
        return any(ring.reader.pending for ring in self._rings.values() if not ring.broken)

    @property
    def dropped(self) -> int:
        """Records lost because a ring was full."""
        return sum(ring.reader.dropped for ring in self._rings.values())

    @property
    def dropped_requests(self) -> int:
        """Requests left out as a whole because a ring was nearly full."""
        return sum(ring.reader.dropped_requests for ring in self._rings.values())

    @property
    def command(self) -> str:
        """Name of the program that recorded first, empty before there is one."""
        for ring in self._rings.values():
            return ring.reader.header.command
        return ""

    @property
    def found(self) -> bool:
        """Whether anything has recorded yet."""
        return bool(self._rings)

    @property
    def all_over(self) -> bool:
        """Whether every process that recorded said good-bye or is gone."""
        return all(ring.reader.closed or not ring.reader.alive for ring in self._rings.values())

    def said_goodbye(self, pid: int) -> bool:
        """Whether a process recorded and said that it records no more."""
        own = [ring.reader.closed for ring in self._rings.values() if ring.reader.header.pid == pid]
        return bool(own) and all(own)

    def newly_dead(self) -> list[int]:
        """Return the pids that are gone since the last call without having said good-bye."""
        gone = {
            ring.reader.header.pid
            for ring in self._rings.values()
            if ring.reader.header.pid not in self._dead and not ring.reader.closed and not ring.reader.alive
        }
        self._dead |= gone
        return sorted(gone)

    def discover(self) -> None:
        """Find rings that appeared since the last call."""
        with os.scandir(self.directory) as entries:
            names = sorted([entry.name for entry in entries if entry.name.endswith(".ring")])
        for name in names:
            if (path := self.directory / name) not in self._rings:
                try:
                    self._rings[path] = _Ring(RingReader(path))
                except ValueError:
                    # Its process is still writing the header; the next pass finds it again.
                    continue
                except OSError:
                    logger.warning("cannot read ring %s", path, exc_info=True)
