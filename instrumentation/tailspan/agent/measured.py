"""Stages that a worker measured by hand, in any order and nesting, as a sequence without overlaps: pure functions.

In: `STAGE` intervals of one request. Out: consecutive runs; what no interval covers stays between them.

Where intervals overlap, the one that began last (the innermost) has the time. Neighbours of one name are joined. Text
and answer pieces that are handled between two parts of `decode` belong to it, as in an engine that streams: their work
is kept as busy time of the `detokenize` and `respond` that follow.
Units: monotonic ns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from tailspan.agent.model import Interval

_WAITING_STAGES = ("queue", "preempted")
_OUTPUT_STAGES = ("detokenize", "respond")


@dataclass(slots=True)
class Run:
    """Consecutive time of one stage, gaps between its parts included."""

    stage: str
    begin_ns: int
    end_ns: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class _Segment:
    part: int
    begin_ns: int
    end_ns: int


def closed(intervals: Sequence[Interval], end_ns: int) -> list[Interval]:
    """Return complete intervals. One without end (0) says that a stage began: it lasts until another one ends it.

    What nothing ended was under way at the request's end `end_ns`, because its worker died there, say.
    """
    ended = {(part.stage, part.begin_ns) for part in intervals if part.end_ns}
    complete = [part for part in intervals if part.end_ns]
    for part in intervals:
        if not part.end_ns and (part.stage, part.begin_ns) not in ended:
            busy_ns = 0 if part.stage in _WAITING_STAGES else max(0, end_ns - part.begin_ns)
            complete.append(Interval(part.stage, part.begin_ns, end_ns, busy_ns))
    return complete


def runs(intervals: Iterable[Interval]) -> list[Run]:
    """Return the stages in order of time, none overlapping another; `detokenize` may be empty, with its busy time."""
    parts = [part for part in intervals if part.end_ns > part.begin_ns]
    segments = _segments(parts)
    own_ns: Counter[int] = Counter()
    for segment in segments:
        own_ns[segment.part] += segment.end_ns - segment.begin_ns
    merged: list[Run] = []
    inside_decode: Counter[str] = Counter()
    for segment in segments:
        part = parts[segment.part]
        # The busy time of a part counts once, where the part begins to have time of its own.
        busy_ns = min(part.busy_ns or 0, own_ns.pop(segment.part, 0))
        _append(merged, Run(part.stage, segment.begin_ns, segment.end_ns, busy_ns), inside_decode)
    return _with_output_work(merged, inside_decode)


def _segments(parts: Sequence[Interval]) -> list[_Segment]:
    """Cut the time at every begin and end; each piece belongs to the open part that began last."""
    order = sorted(range(len(parts)), key=lambda index: parts[index].begin_ns)
    points = sorted({at for part in parts for at in (part.begin_ns, part.end_ns)})
    open_parts: list[tuple[int, int, int]] = []
    segments = []
    position = 0
    for begin_ns, end_ns in pairwise(points):
        while position < len(order) and parts[order[position]].begin_ns == begin_ns:
            index = order[position]
            heappush(open_parts, (-begin_ns, parts[index].end_ns, index))
            position += 1
        while open_parts and open_parts[0][1] <= begin_ns:
            heappop(open_parts)
        if open_parts:
            segments.append(_Segment(open_parts[0][2], begin_ns, end_ns))
    return segments


def _append(merged: list[Run], run: Run, inside_decode: Counter[str]) -> None:
    if run.stage == "decode":
        between = 0
        while between < len(merged) and merged[-1 - between].stage in _OUTPUT_STAGES:
            between += 1
        if between and between < len(merged) and merged[-1 - between].stage == "decode":
            for output in merged[-between:]:
                inside_decode[output.stage] += output.busy_ns
            del merged[-between:]
    if merged and merged[-1].stage == run.stage:
        merged[-1].end_ns = run.end_ns
        merged[-1].busy_ns += run.busy_ns
    else:
        merged.append(run)


def _with_output_work(merged: list[Run], inside_decode: Counter[str]) -> list[Run]:
    for stage, busy_ns in inside_decode.items():
        last = next((run for run in reversed(merged) if run.stage == stage), None)
        if last is not None:
            last.busy_ns += busy_ns
        elif stage == "detokenize":
            position = max(index for index, run in enumerate(merged) if run.stage == "decode")
            at_ns = merged[position].end_ns
            merged.insert(position + 1, Run(stage, at_ns, at_ns, busy_ns))
    return merged
