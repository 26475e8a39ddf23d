"""A synthetic scheduler: batch 256, 1,000 requests/s, a fixed CPU cost a step, with and without the recorder.

A step takes 10 ms of CPU for something that never varies, 10 requests join it and the 10 oldest finish, so that 256 are
in the batch. Written is what the transformers hooks write: by the scheduler's thread alone (`served=False`: everything
of an offline request), or with all that the HTTP layer adds in the same process (`served=True`). As there, joins are
written before the step, all else after it.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from dataclasses import dataclass, field

from benchmarks.workload import Traffic
from tailspan import attributes as attr
from tailspan.recorder import AttributeSet, Request, begin_request, now_ns

BATCH = 256
ARRIVALS = 10
STEP_CPU_S = 0.010
TOKENS = BATCH // ARRIVALS
_OFFLINE = AttributeSet({attr.GEN_AI_OPERATION: "text_completion", attr.GEN_AI_MODEL: "SmolLM2-135M-Instruct"})


@dataclass(slots=True)
class SchedulerLoop:
    """An engine loop; `served` None does not record at all."""

    served: bool | None
    iterations: int
    """Of the fixed work of a step, see `iterations_of_a_step`."""
    batch: deque[Request | None] = field(default_factory=deque)
    traffic: Traffic = field(default_factory=Traffic)

    def step(self) -> tuple[int, int]:
        """Run one step; return the CPU time of this thread in ns: all of it, and what the recorder took."""
        begin_cpu_ns = time.thread_time_ns()
        arrived = [self._arrive() for _ in range(ARRIVALS)]
        self.batch.extend(arrived)
        begin_ns = now_ns()
        number = self._plan(begin_ns, arrived)
        planned_cpu_ns = time.thread_time_ns()
        _work(self.iterations)
        worked_cpu_ns = time.thread_time_ns()
        leaving = [self.batch.popleft() for _ in range(len(self.batch) - BATCH)]
        if self.served is not None:
            self._record(number, begin_ns, arrived, leaving)
        end_cpu_ns = time.thread_time_ns()
        return end_cpu_ns - begin_cpu_ns, end_cpu_ns - worked_cpu_ns + planned_cpu_ns - begin_cpu_ns

    def _plan(self, begin_ns: int, arrived: list[Request | None]) -> int:
        if self.served is None:
            return 0
        engine = self.traffic.engine
        number = engine.next_step()
        for request in filter(None, arrived):
            engine.join(request.key, number, begin_ns, samples_token=True)
        return number

    def _record(self, number: int, begin_ns: int, arrived: list[Request | None], leaving: list[Request | None]) -> None:
        traffic, engine, at_ns = self.traffic, self.traffic.engine, now_ns()
        traffic.step(number, begin_ns, BATCH)
        if self.served:
            for request in filter(None, arrived):
                request.first_chunk(now_ns())
        for request in filter(None, leaving):
            if self.served:
                traffic.finish(request, number, at_ns, TOKENS)
            else:
                engine.finish(request.key, number, at_ns, TOKENS)
                request.end(now_ns())

    def _arrive(self) -> Request | None:
        if self.served is None:
            return None
        if self.served:
            return self.traffic.arrive()
        begin_ns = now_ns()
        request = begin_request("generate", begin_ns, None, _OFFLINE)
        self.traffic.engine.queued(request.key, begin_ns, 64, "req_1234")
        return request


def iterations_of_a_step() -> int:
    """Return how much of the fixed work makes 10 ms on this machine."""
    trial = 20_000
    fastest_s = min(_timed(trial) for _ in range(5))
    return int(trial * STEP_CPU_S / fastest_s)


def _timed(iterations: int) -> float:
    begin_s = time.thread_time()
    _work(iterations)
    return time.thread_time() - begin_s


def _work(iterations: int) -> None:
    # All in registers and the first-level cache, so that a neighbour's memory traffic does not change it.
    hashlib.pbkdf2_hmac("sha256", b"tailspan", b"salt", iterations)
