"""Where slices go: processes, their lanes, and which lane has room.

A viewer nests slices of one lane that lie in each other and cannot show two that merely overlap. So each kind of slice
takes the first lane of its own that is free, and a lane is made when none is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tailspan_queries.perfetto_events import Event, Track, name_process, name_thread

LANES = 1_000_000
"""Numbers that a process has for its lanes; a viewer orders lanes by number, and needs them unlike in all processes."""
REQUESTS, ENGINES, OTHERS, SPANS = 0, 300_000, 500_000, 700_000
"""First lane of each kind within a process."""
WORKER_EVENTS = 999_999
ENGINE_LANES = 100
"""Lanes that an engine has: its steps, then its device."""
DEVICE_LANE = 90


@dataclass(slots=True)
class Packer:
    """Finds for intervals, in the order of their begins, as few lanes as they need."""

    free_at: list[int] = field(default_factory=list)

    def place(self, begin_ns: int, end_ns: int) -> int:
        """Return the number of a lane in which nothing lies from `begin_ns` on."""
        for lane, free_ns in enumerate(self.free_at):
            if free_ns <= begin_ns:
                self.free_at[lane] = end_ns
                return lane
        self.free_at.append(end_ns)
        return len(self.free_at) - 1


@dataclass(slots=True)
class Forest:
    """Finds lanes for spans of any tracer: a child lies in its parent if it ends with it, else in a lane of its own."""

    packer: Packer = field(default_factory=Packer)
    open_spans: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    lane_of: dict[str, int] = field(default_factory=dict)

    def place(self, span: str, parent: str, begin_ns: int, end_ns: int) -> int:
        """Return the number of the lane; spans come in the order of their begins, the longer one first."""
        lane = self.lane_of.get(parent)
        if lane is not None:
            stack = self.open_spans[lane]
            while stack and stack[-1][1] <= begin_ns and stack[-1][0] != parent:
                stack.pop()
            if stack and stack[-1][0] == parent and begin_ns < stack[-1][1] and end_ns <= stack[-1][1]:
                stack.append((span, end_ns))
                self.lane_of[span] = lane
                return lane
        lane = self.packer.place(begin_ns, end_ns)
        self.open_spans[lane] = [(span, end_ns)]
        self.lane_of[span] = lane
        return lane

    def forget(self) -> None:
        """Forget the spans, not what is taken: no child of theirs comes any more."""
        self.open_spans.clear()
        self.lane_of.clear()


class Tracks:
    """Gives processes and lanes their numbers, and writes their names when they are first used."""

    def __init__(self, write: Callable[[Event], None]) -> None:
        self._write = write
        self._pids: dict[tuple[str, str], int] = {}
        self._named: set[Track] = set()
        self._engines: dict[tuple[int, str], int] = {}

    def pid(self, service: str, instance: str, labels: str = "") -> int:
        """Return the number of the process that stands for one instance of a service."""
        known = self._pids.get((service, instance))
        if known is not None:
            return known
        pid = self._pids[service, instance] = len(self._pids) + 1
        name = " · ".join(filter(None, (service, instance))) or "unnamed service"
        for event in name_process(pid, name, labels, pid):
            self._write(event)
        return pid

    def track(self, pid: int, number: int, name: str) -> Track:
        """Return a lane of a process; `number` is its place among the lanes."""
        track = Track(pid, pid * LANES + number)
        if track not in self._named:
            self._named.add(track)
            for event in name_thread(track, name, number):
                self._write(event)
        return track

    def numbered(self, pid: int, kind: int, lane: int, name: str) -> Track:
        """Return a lane of a kind that has several."""
        return self.track(pid, kind + lane, f"{name} {lane + 1}")

    def engine(self, pid: int, engine_id: str) -> int:
        """Return the place of the first lane of an engine."""
        number = self._engines.setdefault((pid, engine_id), sum(1 for key in self._engines if key[0] == pid))
        return ENGINES + number * ENGINE_LANES
