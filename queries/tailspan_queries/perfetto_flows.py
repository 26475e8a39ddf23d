"""Arrows from a request's prefill or decode to the engine steps in which it joined and left the batch.

An arrow is bound to the slice in which its time lies. It never goes back in time: at a step it lies at the begin of the
step or of the stage, whichever is later. Where the steps are not in the export there is no arrow.
Memory: three numbers for each stage that ran in an engine, one place for each step that one of them names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailspan_queries.perfetto_events import Event, Slice, flow
from tailspan_queries.perfetto_records import Engine


@dataclass(frozen=True, slots=True)
class Stay:
    """A stage's stay in the batch."""

    engine: Engine
    stage: Slice
    first_step: int
    last_step: int


@dataclass(slots=True)
class Flows:
    """Collects stays, learns where their steps lie, and then makes the arrows."""

    stays: list[Stay] = field(default_factory=list)
    places: dict[tuple[Engine, int], Slice | None] = field(default_factory=dict)

    def add(self, engine: Engine, stage: Slice, first_step: int, last_step: int) -> None:
        """Note that a stage took part in steps."""
        self.stays.append(Stay(engine, stage, first_step, last_step))
        self.places.setdefault((engine, first_step))
        self.places.setdefault((engine, last_step))

    def found(self, engine: Engine, step: int, place: Slice) -> None:
        """Note where a step lies."""
        if (engine, step) in self.places:
            self.places[engine, step] = place

    def events(self) -> Iterator[Event]:
        """Yield the arrows; they must come after the slices in the file, for those of the same time."""
        for number, stay in enumerate(self.stays, start=1):
            at_ns = stay.stage.begin_ns
            points = []
            for step in dict.fromkeys((stay.first_step, stay.last_step)):
                place = self.places.get((stay.engine, step))
                if place is not None and max(place.begin_ns, at_ns) < place.end_ns:
                    at_ns = max(place.begin_ns, at_ns)
                    points.append((place.track, at_ns))
            if not points:
                continue
            yield flow("s", stay.stage.track, stay.stage.begin_ns, number)
            for track, when_ns in points[:-1]:
                yield flow("t", track, when_ns, number)
            yield flow("f", *points[-1], number)
