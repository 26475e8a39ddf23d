"""`python -m benchmarks.writer RECORDS_PER_S SECONDS`: write records at a fixed rate into TAILSPAN_WORKER_DIR.

The load is an engine with a step every 5 ms and as many served requests as the rate needs; each lives for 20 steps.
Prints what it wrote, as JSON, and says good-bye when its standard input closes.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

from benchmarks.workload import RECORDS_OF_A_REQUEST, SPANS_OF_A_REQUEST, Traffic, pace
from tailspan.recorder import Request, now_ns, process
from tailspan.settings import Settings

STEP_S = 0.005
LIFETIME_STEPS = 20


def main() -> None:
    """Write, report, wait, leave."""
    rate, seconds = float(sys.argv[1]), float(sys.argv[2])
    process.start(Settings.from_environment())
    steps, requests = write(Traffic(), rate, seconds)
    written = {
        "records": requests * RECORDS_OF_A_REQUEST + steps,
        "spans": requests * SPANS_OF_A_REQUEST + steps,
        "cpu_s": time.process_time(),
    }
    print(json.dumps(written), flush=True)
    sys.stdin.read()
    process.close()


def write(traffic: Traffic, rate: float, seconds: float) -> tuple[int, int]:
    """Write at `rate` records a second; return steps and requests."""
    a_step = (rate * STEP_S - 1) / RECORDS_OF_A_REQUEST
    batch: deque[tuple[int, Request]] = deque()
    begin_s = time.perf_counter()
    due = 0.0
    arrived = 0
    for done in range(int(seconds / STEP_S)):
        pace(begin_s, done * STEP_S)
        begin_ns = now_ns()
        step = traffic.engine.next_step()
        due += a_step
        joined = []
        while arrived < due:
            arrived += 1
            request = traffic.arrive()
            traffic.engine.join(request.key, step, now_ns(), samples_token=True)
            joined.append(request)
            batch.append((step, request))
        traffic.step(step, begin_ns, len(batch))
        at_ns = now_ns()
        for request in joined:
            request.first_chunk(at_ns)
        while batch and batch[0][0] + LIFETIME_STEPS <= step:
            traffic.finish(batch.popleft()[1], step, at_ns, LIFETIME_STEPS)
    steps = int(seconds / STEP_S)
    for _, request in batch:
        traffic.finish(request, steps, now_ns(), LIFETIME_STEPS)
    return steps, arrived


if __name__ == "__main__":
    main()
