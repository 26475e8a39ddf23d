"""`tailspan agent --watch DIR`: one agent for each worker that records below a folder, as a sidecar does.

The workers run with TAILSPAN_AGENT=external and TAILSPAN_RUNTIME_DIR on a volume that both containers mount. Whether a
worker lives is asked of the kernel by file locks, so the containers need not share a PID namespace.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from pathlib import Path

from tailspan.agent.launch import launch

logger = logging.getLogger("tailspan.agent")

LOOK_S = 0.5
END_S = 60.0
"""Longest time that the agents get to deliver after a SIGTERM."""


def watch(directory: Path) -> int:
    """Start an agent for every worker folder until SIGTERM or SIGINT; return 0 when all of them delivered."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    agents: dict[Path, subprocess.Popen[bytes]] = {}
    while not stop.wait(LOOK_S):
        for worker in sorted(directory.glob("worker-*")):
            if worker not in agents and worker.is_dir():
                agents[worker] = launch(worker, None)
        for worker, agent in list(agents.items()):
            if agent.poll() is not None and not worker.exists():
                del agents[worker]
    return _end(agents)


def _end(agents: dict[Path, subprocess.Popen[bytes]]) -> int:
    for agent in agents.values():
        agent.terminate()
    for worker, agent in agents.items():
        try:
            agent.wait(END_S)
        except subprocess.TimeoutExpired:
            logger.warning("the agent of %s is not done; it goes on trying", worker)
    # An agent's last act, after everything is delivered, is to remove its folder.
    return int(any(worker.exists() for worker in agents))
