"""Times the parts of a model inside a CUDA graph, by events that are part of the graph. Not measured on a GPU.

In:  a plan, and the device's API (`torch.cuda`): `Event(enable_timing=True, external=True)`. Such an event becomes a
     node of the graph that is captured, and is recorded anew by each replay.
Out: ns of each part of one replay, once the device has passed it and until the next replay begins.

Capture a second graph with events beside the plain one, and replay that one in the steps that are to be sampled: the
plain one then stays as fast as it was. It costs two events a call (some 300 for 30 layers, well under 1 MB), and the
memory of a second graph: give both the same pool, then their activations share it, which is safe as they never run at
once.

    layers = GraphLayers(plan, torch.cuda)
    with layers.capture(torch.cuda.graph(timed, pool=plain.pool())):
        logits = model(tokens)
    replay = layers.replay(timed)
    ...
    times = layers.read(replay)   # None: not done yet, or too late
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tailspan.errors import UserError
from tailspan.layers.partition import partition
from tailspan.layers.plan import Plan
from tailspan.layers.taps import Taps


class GraphLayers:
    """The events of one captured graph; used by the thread that replays it."""

    def __init__(self, plan: Plan, api: Any) -> None:
        self.parts_text = plan.parts_text
        self.missed = 0
        """Replays whose times were not read before the next one."""
        self._plan = plan
        self._api = api
        self._events: list[Any] = []
        self._codes: list[int] = []
        self._begin: Any = None
        self._end: Any = None
        self._replays = 0
        self._is_read = True

    @contextmanager
    def capture(self, graph_context: AbstractContextManager[Any]) -> Iterator[None]:
        """Capture what runs inside into the graph of `graph_context`, with events around the parts.

        Raises `UserError` if it captured before, or nothing of the model ran inside.
        """
        if self._begin is not None:
            raise UserError("these layer events belong to a captured graph", "Make one GraphLayers for each graph")
        taps = Taps(self._plan, self._record, capturing=True)
        with graph_context:
            begin = self._record()
            taps.install()
            try:
                yield
            finally:
                taps.remove()
            end = self._record()
        if not taps.marks:
            raise UserError("no part of the model ran while its graph was captured", "Call the model itself inside")
        self._events, self._codes = list(taps.marks), list(taps.codes)
        self._begin, self._end = begin, end

    def replay(self, graph: Any) -> int:
        """Replay the captured graph; return the replay's number for `read`."""
        if not self._is_read:
            self.missed += 1
        self._replays += 1
        self._is_read = False
        graph.replay()
        return self._replays

    def read(self, replay: int) -> list[float] | None:
        """Return the ns of each part in a replay; None if the device has not passed it yet, or another has begun.

        They add up to the graph's time less what the events took. Never waits.
        """
        if replay != self._replays or self._is_read or not self._end.query():
            return None
        offsets = [self._begin.elapsed_time(event) * 1e6 for event in self._events]
        total_ns = self._begin.elapsed_time(self._end) * 1e6
        self._is_read = True
        return partition(offsets, self._codes, total_ns, len(self._plan.parts))

    def _record(self) -> Any:
        event = self._api.Event(enable_timing=True, external=True)
        event.record()
        return event
