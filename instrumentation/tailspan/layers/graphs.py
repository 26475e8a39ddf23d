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

`LayerSampler.replay` does so in the steps that are sampled, `tailspan.Engine.capture` makes both graphs.

Errors: one of the device while events are read is logged once, and nothing is timed from then on; it is not raised.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tailspan.errors import UserError
from tailspan.guard import logger
from tailspan.layers.partition import partition
from tailspan.layers.plan import Plan
from tailspan.layers.taps import Taps

_logged: set[str] = set()
"""Reasons for giving up that have been told."""


class Replay:
    """One replay of a captured graph; who lets go of it gives its times up."""

    __slots__ = ("__weakref__", "layers", "total_ns")

    def __init__(self, layers: GraphLayers) -> None:
        self.layers = layers
        self.total_ns = 0.0
        """What the graph took, its events included; known once it has been read."""


class GraphLayers:
    """The events of one captured graph; used by the thread that replays it."""

    def __init__(self, plan: Plan, api: Any) -> None:
        self.plan = plan
        self.missed = 0
        """Replays whose times were not read before the next one."""
        self._api = api
        self._events: list[Any] = []
        self._codes: list[int] = []
        self._begin: Any = None
        self._end: Any = None
        self._unread: weakref.ref[Replay] | None = None
        self._broken = False

    @property
    def is_broken(self) -> bool:
        """Whether it tells no times any more."""
        return self._broken

    @property
    def is_free(self) -> bool:
        """Whether the graph can be replayed without a loss: no earlier replay still waits to be read."""
        return not self._broken and (self._unread is None or self._unread() is None)

    def give_up(self, reason: object) -> None:
        """Tell no times from now on, and log why, once for all graphs."""
        self._broken = True
        text = str(reason)
        if text not in _logged:
            _logged.add(text)
            logger.warning("tailspan: layers inside a CUDA graph are not timed: %s", text)

    @contextmanager
    def capture(self, graph_context: AbstractContextManager[Any]) -> Iterator[None]:
        """Capture what runs inside into the graph of `graph_context`, with events around the parts.

        Raises `UserError` if it captured before, or nothing of the model ran inside.
        """
        if self._begin is not None:
            raise UserError("these layer events belong to a captured graph", "Make one GraphLayers for each graph")
        taps = Taps(self.plan, self._record, capturing=True)
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

    def replay(self, graph: Any) -> Replay:
        """Replay the captured graph; return what to `read`. Raises what replaying it raises."""
        if self._unread is not None and self._unread() is not None:
            self.missed += 1
        replay = Replay(self)
        self._unread = weakref.ref(replay)
        graph.replay()
        return replay

    def read(self, replay: Replay) -> list[float] | None:
        """Return the ns of each part in a replay; None if the device has not passed it yet, or another has begun.

        They add up to the graph's time less what the events took. What follows the last timed call is `sampler`, unless
        the plan has a sampler of its own. Never waits.
        """
        if self._broken or self._unread is None or self._unread() is not replay:
            return None
        try:
            if not self._end.query():
                return None
            offsets = [self._begin.elapsed_time(event) * 1e6 for event in self._events]
            replay.total_ns = self._begin.elapsed_time(self._end) * 1e6
        except RuntimeError as error:
            self.give_up(error)
            return None
        self._unread = None
        plan = self.plan
        tail = None if plan.has_sampler else plan.sampler
        return partition(offsets, self._codes, replay.total_ns, len(plan.parts), tail)

    def _record(self) -> Any:
        event = self._api.Event(enable_timing=True, external=True)
        event.record()
        return event
