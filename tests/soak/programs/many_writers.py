"""Processes and threads write numbered records, and fork at chosen moments.

Usage: JSON with `threads` per process, `records` per thread, `forks`: a list of (thread, record) in the first process
at which that thread forks; every child runs `threads` threads of its own and does not fork again; `raw`: records
without meaning into the ring, or whole requests through the public functions; `pause_every`: records between sleeps.
A writer is named by its process and thread; its records are numbered from 0. Prints nothing.
"""

import json
import os
import sys
import threading
import time

from tailspan.recorder import begin_request, now_ns, process
from tailspan.recorder.layout import Kind
from tailspan.settings import Settings

plan = json.loads(sys.argv[1])
children = []
children_lock = threading.Lock()


def write(writer: int, forks: frozenset[int]) -> None:
    """Write all records of one writer."""
    for number in range(plan["records"]):
        if number in forks:
            fork()
        if plan["raw"]:
            process.ring().record(Kind.QUEUED, 0, 0, writer, number, os.getpid())
        else:
            request = begin_request("generate", now_ns())
            request.attribute("tailspan.test.writer", writer)
            request.attribute("tailspan.test.number", number)
            request.end(now_ns())
        if number % plan["pause_every"] == 0:
            time.sleep(0.0005)


def fork() -> None:
    """Fork here, in whatever thread this is; the child never comes back."""
    pid = os.fork()
    if pid == 0:
        run_all(frozenset())
        process.close()
        os._exit(0)
    with children_lock:
        children.append(pid)


def run_all(forks: frozenset[tuple[int, int]]) -> None:
    """Run the threads of this process."""
    threads = [
        threading.Thread(target=write, args=(os.getpid() << 16 | thread, frozenset(n for t, n in forks if t == thread)))
        for thread in range(plan["threads"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


process.start(Settings.from_environment())
run_all(frozenset((thread, number) for thread, number in plan["forks"]))
for child in children:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
process.close()
