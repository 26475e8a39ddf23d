"""What an instrumented worker recorded, joined as the agent does it, for tests that look at records and stages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tailspan import attributes as attr
from tailspan.agent.decode import Step
from tailspan.agent.join import Finished, Joiner
from tailspan.agent.model import Interval, RequestState
from tailspan.agent.stages import partition, token_times_ns, unattributed_ns
from tailspan.agent.timeline import Timeline
from tailspan.agent.worker import WorkerRings
from tailspan.recorder.layout import Kind
from tailspan.recorder.reader import read_history


@dataclass(frozen=True, slots=True)
class Traced:
    """One finished request."""

    finished: Finished

    @property
    def state(self) -> RequestState:
        """The records of the request."""
        return self.finished.request

    @property
    def stages(self) -> list[Interval]:
        """The partition of the request."""
        return partition(self.state, self.begin_ns, self.end_ns, Timeline(self.finished.steps))

    @property
    def stage_names(self) -> list[str]:
        """The stages in order, an eviction may repeat them."""
        return [stage.stage for stage in self.stages]

    @property
    def begin_ns(self) -> int:
        """Begin of the request."""
        assert self.state.begin_ns is not None
        return self.state.begin_ns

    @property
    def end_ns(self) -> int:
        """End of the request."""
        assert self.state.end_ns is not None
        return self.state.end_ns

    @property
    def gap_ns(self) -> int:
        """What no stage covers."""
        return unattributed_ns(self.begin_ns, self.end_ns, self.stages)

    @property
    def token_times(self) -> list[int]:
        """Host times of the steps that gave this request a token."""
        return token_times_ns(self.state, Timeline(self.finished.steps))

    def __getitem__(self, key: str) -> object:
        """An attribute of the request."""
        return self.state.attributes[key]

    def check_boundaries(self, gap_ms: float = 5.0) -> None:
        """The recorded boundaries are ordered and the stages cover begin to end but for `gap_ms`."""
        state = self.state
        tokenized = [part.end_ns for part in state.measured if part.stage == "tokenize"]
        received = [part.end_ns for part in state.measured if part.stage == "receive"]
        boundaries = [
            state.begin_ns,
            max(received, default=None),
            max(tokenized, default=None),
            state.queued_ns,
            state.memberships[0].join_ns if state.memberships else None,
            state.first_token_ns,
            # The engine learns of a client that left only after the request has ended.
            # The clock may be read after the text has left; the stages end with the request.
            *((state.finish_ns, _until(state.text_ready_ns, state.end_ns)) if state.outcome == "ok" else ()),
            state.end_ns,
        ]
        present = [at_ns for at_ns in boundaries if at_ns is not None]
        assert present == sorted(present), boundaries
        assert 0 <= self.gap_ns <= gap_ms * 1e6, (self.gap_ns, self.stages)


class Recorded:
    """The records of a worker folder up to now."""

    def __init__(self, directory: Path) -> None:
        """Read `directory` whenever asked."""
        self._rings = WorkerRings(directory)
        self._joiner = Joiner()
        self.requests: list[Traced] = []
        self.steps: list[Step] = []

    def read(self) -> None:
        """Take in all records written so far; requests that have ended become visible."""
        self._rings.discover()
        for _ in range(2):  # a ring hands out what its previous read saw
            for pid, events in self._rings.read():
                self._joiner.feed(events, pid)
        ended = [request for request in self._joiner.open.values() if request.end_ns is not None]
        if not ended or any(request.in_engine and request.memberships for request in ended):
            return
        unfinished = {key: state for key, state in self._joiner.open.items() if state.end_ns is None}
        for state in unfinished.values():
            del self._joiner.open[state.key]
        finished, steps = self._joiner.end_pass(final=True)
        self._joiner.open.update(unfinished)
        self.requests += [Traced(item) for item in finished]
        self.steps += [item.step for item in steps]

    def wait(self, count: int, timeout_s: float = 20.0) -> list[Traced]:
        """Return the first `count` requests in order of their begin, as soon as all have ended."""
        deadline = time.monotonic() + timeout_s
        while len(self.requests) < count and time.monotonic() < deadline:
            self.read()
            time.sleep(0.005)
        self.read()
        assert len(self.requests) == count, [(r.state.name, r.state.outcome) for r in self.requests]
        return sorted(self.requests, key=lambda traced: traced.begin_ns)

    def one(self) -> Traced:
        """Return the only request."""
        (request,) = self.wait(1)
        return request

    def count(self, kind: Kind) -> int:
        """Return how many records of a kind the rings still hold."""
        slots = [slot for path in self._rings.directory.glob("*.ring") for slot in read_history(path)[1]]
        return sum(int.from_bytes(slot[:2], "little") == kind for slot in slots)

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._joiner.open)


MODEL = attr.GEN_AI_MODEL
INPUT = attr.GEN_AI_INPUT_TOKENS
OUTPUT = attr.GEN_AI_OUTPUT_TOKENS


def _until(at_ns: int | None, end_ns: int) -> int | None:
    return None if at_ns is None else min(at_ns, end_ns)
