"""A strict reader of the Trace Event Format, written from its public description, for what an export writes.

Raises `AssertionError` for anything that the format forbids or that its viewers are known to show wrongly: slices of a
lane that overlap, arrows that hang in the air, numbers that are none, threads of two processes with one number.

Source: "Trace Event Format" (Catapult). Times are read as viewers do: microseconds times 1000, cut to a whole number.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
PHASES = {"X", "i", "C", "s", "t", "f", "M"}
COLORS = {"grey", "terrible", "bad", "good", "white", "black", "yellow", "olive", "generic_work"}
METADATA = {
    "process_name": {"name": str},
    "process_labels": {"labels": str},
    "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}
Lane = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A slice as a viewer places it; `parent` is the slice that it lies in."""

    event: Event
    begin_ns: int
    end_ns: int
    parent: Placed | None

    @property
    def args(self) -> dict[str, Any]:
        """What the viewer shows of it."""
        return dict(self.event["args"])

    @property
    def wall_ns(self) -> int:
        """Length."""
        return self.end_ns - self.begin_ns


@dataclass(slots=True)
class Trace:
    """A trace that passed: slices by lane, and all else by kind."""

    document: dict[str, Any]
    lanes: dict[Lane, list[Placed]] = field(default_factory=lambda: defaultdict(list))
    names: dict[Lane, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    counters: list[Event] = field(default_factory=list)
    instants: list[Event] = field(default_factory=list)
    flows: dict[int, list[Placed]] = field(default_factory=dict)

    @property
    def base_ns(self) -> int:
        """The time from which all others count."""
        return int(self.document["metadata"]["base_time_unix_ns"])

    def slices(self, category: str) -> list[Placed]:
        """Return the slices of a category."""
        return [placed for lane in self.lanes.values() for placed in lane if placed.event["cat"] == category]

    def lane(self, placed: Placed) -> str:
        """Return the name of the lane that a slice is in."""
        return self.names[placed.event["pid"], placed.event["tid"]]

    def process(self, placed: Placed) -> str:
        """Return the name of the process that a slice is in."""
        return self.processes[placed.event["pid"]]


def read_trace(path: Path) -> Trace:
    """Read and check a file; packed if its name says so."""
    data = path.read_bytes()
    return check_trace((gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8"))


def check_trace(text: str) -> Trace:
    """Check the text of a trace and return what it holds."""
    document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    assert isinstance(document, dict)
    assert set(document) == {"displayTimeUnit", "metadata", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    # A reader that streams needs the unit before the first event.
    assert next(iter(document)) == "displayTimeUnit"
    assert isinstance(document["metadata"], dict)
    trace = Trace(document)
    flows: dict[int, list[Event]] = defaultdict(list)
    durations: dict[Lane, list[Event]] = defaultdict(list)
    for event in document["traceEvents"]:
        _check_common(event)
        match event["ph"]:
            case "X":
                _check_complete(event)
                durations[event["pid"], event["tid"]].append(event)
            case "i":
                assert event["s"] in ("g", "p", "t")
                assert isinstance(event["args"], dict)
                trace.instants.append(event)
            case "C":
                _check_counter(event)
                trace.counters.append(event)
            case "M":
                _check_metadata(event, trace)
            case _:
                assert type(event["id"]) is int
                flows[event["id"]].append(event)
    for lane, events in durations.items():
        trace.lanes[lane] = _nested(events)
    _check_names(trace)
    for number, events in flows.items():
        trace.flows[number] = _bound(trace, events)
    return trace


def viewer_ns(value: float) -> int:
    """Return what a viewer makes of a time."""
    return int(value * 1000.0)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def _check_common(event: Event) -> None:
    assert event["ph"] in PHASES
    assert type(event["pid"]) is int
    assert event["pid"] > 0
    if event["ph"] != "C":
        assert type(event["tid"]) is int
        assert 0 <= event["tid"] < 2**32
    assert isinstance(event["name"], str)
    assert event["name"]
    assert not any(ord(character) < 32 for character in event["name"])
    _check_time(event["ts"])
    if event["ph"] != "M":
        assert isinstance(event["cat"], str)
        assert event["cat"]


def _check_time(value: object) -> None:
    assert type(value) in (int, float)
    assert isinstance(value, int | float)
    assert math.isfinite(value)
    assert 0 <= value < 2**50 / 1000
    # Cut or rounded to ns, it is the same.
    assert viewer_ns(value) == round(value * 1000)


def _check_complete(event: Event) -> None:
    _check_time(event["dur"])
    # Viewers put the next slice of the same begin into one without length.
    assert viewer_ns(event["dur"]) > 0
    assert isinstance(event["args"], dict)
    assert event.get("cname", "grey") in COLORS
    assert set(event) <= {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args", "cname"}


def _check_counter(event: Event) -> None:
    assert event["args"]
    for value in event["args"].values():
        assert type(value) in (int, float)
        assert math.isfinite(value)


def _check_metadata(event: Event, trace: Trace) -> None:
    fields = METADATA[event["name"]]
    assert {key: type(value) for key, value in event["args"].items()} == fields
    lane = event["pid"], event["tid"]
    if event["name"] == "process_name":
        assert event["pid"] not in trace.processes
        trace.processes[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
        assert lane not in trace.names
        trace.names[lane] = event["args"]["name"]


def _check_names(trace: Trace) -> None:
    """Every process and lane in use has a name of its own, and no two processes share the number of a thread."""
    used = {*trace.lanes, *((event["pid"], event["tid"]) for event in trace.instants)}
    assert used <= set(trace.names)
    assert {pid for pid, _ in used} | {event["pid"] for event in trace.counters} <= set(trace.processes)
    assert len(set(trace.processes.values())) == len(trace.processes)
    assert len({tid for _, tid in trace.names}) == len(trace.names)
    assert len({(pid, name) for (pid, _), name in trace.names.items()}) == len(trace.names)
    assert not {tid for _, tid in trace.names} & set(trace.processes)


def _nested(events: list[Event]) -> list[Placed]:
    """Place the slices of a lane as a viewer does: by begin, those of the same begin in the order of the file."""
    placed: list[Placed] = []
    open_slices: list[Placed] = []
    for event in sorted(events, key=lambda event: viewer_ns(event["ts"])):
        begin_ns = viewer_ns(event["ts"])
        end_ns = begin_ns + viewer_ns(event["dur"])
        while open_slices and open_slices[-1].end_ns <= begin_ns:
            open_slices.pop()
        parent = open_slices[-1] if open_slices else None
        assert parent is None or end_ns <= parent.end_ns, (event, parent)
        open_slices.append(Placed(event, begin_ns, end_ns, parent))
        placed.append(open_slices[-1])
    return placed


def _bound(trace: Trace, events: list[Event]) -> list[Placed]:
    """Check an arrow: it begins once, ends once, never goes back in time, and each point lies in a slice."""
    assert [event["ph"] for event in events] == ["s", *["t"] * (len(events) - 2), "f"]
    assert len({(event["cat"], event["name"]) for event in events}) == 1
    assert events[-1]["bp"] == "e"
    times = [viewer_ns(event["ts"]) for event in events]
    assert times == sorted(times)
    found = []
    for event, at_ns in zip(events, times, strict=True):
        lane = trace.lanes[event["pid"], event["tid"]]
        holding = [placed for placed in lane if placed.begin_ns <= at_ns < max(placed.end_ns, placed.begin_ns + 1)]
        assert holding, event
        found.append(holding[-1])
    return found
