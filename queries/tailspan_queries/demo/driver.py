"""Run the load client as a process of its own and collect what it saw.

Errors: `ProgramError` when the client, the server or the collector ends before the load is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from tailspan_queries.demo.client import Observation
from tailspan_queries.demo.load import Job
from tailspan_queries.demo.processes import POLL_S, Program, ProgramError, clean_environment, describe_exit

Finished = Callable[[int], None]
"""Called with the number of requests that are answered."""


def send_load(job: Job, needed: Sequence[Program], finished: Finished = lambda _count: None) -> list[Observation]:
    """Send the job's requests and return what the client saw, in the order of the plan."""
    command = [sys.executable, "-m", "tailspan_queries.demo.load"]
    with tempfile.TemporaryFile("w+") as job_file, tempfile.TemporaryFile("w+") as answers:
        job_file.write(job.to_json())
        job_file.seek(0)
        client = subprocess.Popen(  # noqa: S603 (our own module)
            command, stdin=job_file, stdout=answers, env=clean_environment(), start_new_session=True
        )
        try:
            while client.poll() is None:
                for program in needed:
                    program.check()
                finished(_count_lines(answers.fileno()))
                time.sleep(POLL_S)
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
        if client.returncode:
            raise ProgramError(f"the load client ended with {describe_exit(client.returncode)}")
        answers.seek(0)
        observations = [Observation(**json.loads(line)) for line in answers]
    finished(len(observations))
    return sorted(observations, key=lambda observation: observation.number)


def _count_lines(descriptor: int) -> int:
    # pread leaves the shared file offset alone, at which the client is writing.
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).count(b"\n")
