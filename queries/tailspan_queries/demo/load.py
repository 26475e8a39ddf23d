"""Send the planned load, open loop, and write down what the client saw (run as a child process).

In:     a `Job` as JSON on stdin.
Out:    one line per finished request on stdout: the JSON of its `Observation`.
Why a process of its own: progress bars and SQL of the demo must not delay the client's clock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass

from tailspan_queries.demo.client import Observation, Target, TraceContext, exchange
from tailspan_queries.demo.workload import PlannedRequest


@dataclass(frozen=True, slots=True)
class Job:
    """Where to send which requests."""

    target: Target
    requests: tuple[PlannedRequest, ...]
    sampled: bool = True

    def to_json(self) -> str:
        """Return the job as the JSON text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read a job back."""
        fields = json.loads(text)
        requests = tuple(PlannedRequest(**request) for request in fields["requests"])
        return cls(Target(**fields["target"]), requests, bool(fields["sampled"]))


async def send_all(job: Job) -> None:
    """Send every request at its time, whether or not earlier ones are answered; print each when it is done."""
    start = time.monotonic_ns()
    tasks: list[asyncio.Task[Observation]] = []
    for plan in job.requests:
        due = start + int(plan.at_s * 1e9)
        await asyncio.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
        task = asyncio.create_task(_send(job, plan, time.monotonic_ns() - due))
        task.add_done_callback(_print_observation)
        tasks.append(task)
    await asyncio.gather(*tasks)


async def _send(job: Job, plan: PlannedRequest, late_ns: int) -> Observation:
    return await exchange(job.target, plan, TraceContext.new(job.sampled), late_ns)


def _print_observation(task: asyncio.Task[Observation]) -> None:
    if not task.cancelled() and task.exception() is None:
        sys.stdout.write(json.dumps(asdict(task.result())) + "\n")
        sys.stdout.flush()


def main() -> int:
    """Read the job from stdin and run it."""
    job = Job.from_json(sys.stdin.read())
    gc.freeze()
    gc.disable()  # a short process: a collection in the middle of a request would look like the server's time
    asyncio.run(send_all(job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
