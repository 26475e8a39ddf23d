"""What destinations get when the collector is killed with kill -9."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import grpc

from tests.support.destinations import GrpcDestination

PROGRAM = Path(__file__).parent / "programs" / "spool_and_forward.py"
KILLS, REQUESTS = 4, 100_000


def test_nothing_that_was_acknowledged_is_lost_over_kills(tmp_path: Path) -> None:
    """A process that is killed again and again, with a destination that fails now and then, delivers every request that
    it had acknowledged, at least once; what comes twice is no more than a few chunks.
    """
    random.seed(7)

    def sometimes(_: bytes, context: grpc.ServicerContext) -> bytes:
        if random.random() < 0.01:
            context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        return b""

    acknowledged: list[int] = []
    with GrpcDestination(sometimes) as receiver:
        for _ in range(KILLS):
            acknowledged += run(tmp_path, receiver.url, len(acknowledged), REQUESTS, kill_after_s=random.uniform(1, 2))
        assert run(tmp_path, receiver.url, 0, 0) == []
        got = [int(payload.split()[1]) for payload in receiver.inbox.taken]
    assert len(acknowledged) > 100 * KILLS
    assert set(acknowledged) <= set(got)
    # A chunk is 4 MiB, so about 2,000 of these requests. While requests wait for their next try it is widened by one
    # more each 2 s, longer than a process lives here: each kill may repeat two.
    assert len(got) - len(set(got)) <= KILLS * 4400


def run(folder: Path, endpoint: str, first: int, count: int, kill_after_s: float | None = None) -> list[int]:
    """Run the program; return the numbers that it acknowledged."""
    command = [sys.executable, str(PROGRAM), str(folder), endpoint, str(first), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        numbers: list[int] = []
        deadline: float | None = None
        for line in process.stdout:
            if line == "delivered\n":
                process.wait(20)
                return numbers
            numbers.append(int(line))
            if kill_after_s is not None:
                deadline = deadline or time.monotonic() + kill_after_s
                if time.monotonic() > deadline:
                    process.kill()
                    # What it still managed to say was acknowledged too; the last line may be cut.
                    rest = process.stdout.read().split("\n")
                    return numbers + [int(item) for item in rest[:-1]]
        raise AssertionError(f"it ended by itself after {len(numbers)} requests")
