"""The events of the Trace Event Format, which Perfetto and chrome://tracing read, as plain dictionaries.

In: times in ns since the base of the trace. Out: dictionaries that JSON can hold, times in microseconds.
A viewer takes `ts * 1000`, cut to a whole number, as ns: the doubles written here are those for which that is exact, so
that two slices that touch do not overlap.

Source: "Trace Event Format" (the Catapult project's public document); Perfetto's JSON importer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
GREY = "grey"
RED = "terrible"
"""Names of colours that the format reserves; Perfetto has its own colours and takes no notice."""
BLANKS = dict.fromkeys(range(32), " ")
"""Readers of the format do not take control characters in names."""


@dataclass(frozen=True, slots=True)
class Track:
    """A lane: one thread of one process of the trace."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Where a slice lies: its lane, begin and end in ns since the base."""

    track: Track
    begin_ns: int
    end_ns: int


def microseconds(offset_ns: int) -> int | float:
    """Return the number that a reader turns back into exactly `offset_ns` (up to 2**50, 13 days), however it rounds."""
    if offset_ns % 1000 == 0:
        return offset_ns // 1000
    value = offset_ns / 1000
    while int(value * 1000.0) < offset_ns:
        value = math.nextafter(value, math.inf)
    return value


def complete(place: Slice, name: str, category: str, args: Mapping[str, object], *, color: str = "") -> Event:
    """Return a slice with begin and duration (`X`)."""
    event: Event = {
        "ph": "X",
        "name": name.translate(BLANKS),
        "cat": category,
        "pid": place.track.pid,
        "tid": place.track.tid,
        "ts": microseconds(place.begin_ns),
        "dur": microseconds(place.end_ns - place.begin_ns),
        "args": args,
    }
    if color:
        event["cname"] = color
    return event


def instant(track: Track, at_ns: int, name: str, category: str, args: Mapping[str, object], *, scope: str) -> Event:
    """Return a point in time (`i`) of the thread (scope `t`) or of the process (`p`)."""
    return {
        "ph": "i",
        "name": name,
        "cat": category,
        "pid": track.pid,
        "tid": track.tid,
        "ts": microseconds(at_ns),
        "s": scope,
        "args": args,
    }


def counter(pid: int, at_ns: int, name: str, values: Mapping[str, float]) -> Event:
    """Return values of a process's counter (`C`) that hold from now on."""
    return {"ph": "C", "name": name, "cat": "engine", "pid": pid, "ts": microseconds(at_ns), "args": values}


def flow(phase: str, track: Track, at_ns: int, number: int) -> Event:
    """Return a begin (`s`), a step (`t`) or an end (`f`) of an arrow; it is bound to the slice that it lies in."""
    event: Event = {
        "ph": phase,
        "name": "in the batch",
        "cat": "flow",
        "id": number,
        "pid": track.pid,
        "tid": track.tid,
        "ts": microseconds(at_ns),
    }
    if phase == "f":
        event["bp"] = "e"
    return event


def name_process(pid: int, name: str, labels: str, order: int) -> list[Event]:
    """Return the metadata (`M`) of a process: its name, what stands beside it, and its place among the others."""
    found = [
        metadata("process_name", pid, 0, {"name": name}),
        metadata("process_sort_index", pid, 0, {"sort_index": order}),
    ]
    if labels:
        found.append(metadata("process_labels", pid, 0, {"labels": labels}))
    return found


def name_thread(track: Track, name: str, order: int) -> list[Event]:
    """Return the metadata (`M`) of a lane: its name and its place among those of the process."""
    return [
        metadata("thread_name", track.pid, track.tid, {"name": name}),
        metadata("thread_sort_index", track.pid, track.tid, {"sort_index": order}),
    ]


def metadata(name: str, pid: int, tid: int, args: Mapping[str, object]) -> Event:
    """Return one metadata event."""
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}
