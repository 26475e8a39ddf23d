"""A discrete-event model of an engine with continuous batching.

In: a load, limits, the cost of steps, noise. Out: when each request was scheduled, got its first token, and left.
Units: nanoseconds and tokens.

`whatif_scheduler` says what a step computes; here it takes its time. Steps that only decode, with nobody coming or
going, are made in one go: the time of k of them is a difference of two prefix sums of the noise, so that a request
costs a few events however long it is.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from tailspan_queries.whatif_records import Cost, Limits, Load, Noise, Served
from tailspan_queries.whatif_scheduler import Scheduler

CONTEXT_STEPS = 32
"""Steps made in one go where the cost depends on the context, which is taken from the middle of them."""


def serve(load: Load, limits: Limits, cost: Cost, noise: Noise | None = None) -> Served:
    """Replay a load; without noise each step takes exactly its cost."""
    if not len(load.arrival_ns):
        nothing = np.zeros(0)
        return Served(nothing, nothing, nothing, nothing, 0, 0, 0.0, 0.0)
    engine = Engine(Scheduler(load, limits, cost), cost, noise or Noise(np.ones(1024), np.ones(1)))
    engine.run()
    return engine.scheduler.served()


class Engine:
    """Steps of a scheduler, one after the other, each with its time."""

    def __init__(self, scheduler: Scheduler, cost: Cost, noise: Noise) -> None:
        self.scheduler, self.cost = scheduler, cost
        self.pace: list[float] = noise.pace.tolist()
        self.pace_ns, self.pace_from, self.pace_after = noise.pace_ns, scheduler.arrival[0], float(noise.pace.mean())
        self.sums: list[float] = [0.0, *np.cumsum(noise.decode).tolist()]
        self.mixed: list[float] = noise.mixed.tolist()
        self.drawn = self.mixed_drawn = 0

    def run(self) -> None:
        """Go on until every request has left."""
        scheduler = self.scheduler
        while not scheduler.is_done:
            scheduler.take_arrivals()
            chunks = scheduler.plan()
            if chunks:
                scheduler.now += self.mixed_step_ns(sum(count for _, count in chunks))
                scheduler.compute(chunks)
            else:
                self.make_decode_steps()

    def mixed_step_ns(self, tokens: int) -> float:
        """Return how long a step with so many prompt tokens takes."""
        cost, scheduler = self.cost, self.scheduler
        took = cost.start + cost.token * tokens
        if scheduler.decoding:
            took += cost.base + cost.request * scheduler.decoding + cost.context * scheduler.used
        else:
            took += cost.alone
        factor = self.mixed[self.mixed_drawn]
        self.mixed_drawn = (self.mixed_drawn + 1) % len(self.mixed)
        return took * factor * self.pace_now()

    def pace_now(self) -> float:
        """Return the pace of the time of day; after the recorded time the mean."""
        place = int((self.scheduler.now - self.pace_from) / self.pace_ns)
        return self.pace[place] if place < len(self.pace) else self.pace_after

    def make_decode_steps(self) -> None:
        """Compute steps without prompts until something can change."""
        cost, sums, scheduler = self.cost, self.sums, self.scheduler
        count = scheduler.decode_steps()
        if cost.context:
            count = min(count, CONTEXT_STEPS)
        if self.drawn >= len(sums) - 1:
            self.drawn = 0
        count = min(count, len(sums) - 1 - self.drawn)
        grown = scheduler.decoding * cost.tokens_a_step * (count - 1) / 2
        mean = cost.base + cost.request * scheduler.decoding + cost.context * (scheduler.used + grown)
        mean *= self.pace_now()
        if len(self.pace) > 1 and mean > 0:
            # No further than into the next pace.
            count = min(count, max(1, int(self.pace_ns / mean)))
        # Who waits already keeps those who come from being scheduled.
        if not scheduler.waiting and scheduler.next < len(scheduler.arrival) and mean > 0:
            until = (scheduler.arrival[scheduler.next] - scheduler.now) / mean + sums[self.drawn]
            count = min(count, max(1, bisect_left(sums, until, self.drawn + 1) - self.drawn))
        scheduler.now += mean * (sums[self.drawn + count] - sums[self.drawn])
        self.drawn += count
        scheduler.advance(count)
