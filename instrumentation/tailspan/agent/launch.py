"""Starting the agent beside a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ENDED_FILE = "ended"
"""Written into the worker folder by `tailspan run` once its command is over."""

_AUTO_INSTRUMENTATION = ("opentelemetry/instrumentation/auto_instrumentation", "tailspan/autoload")


def launch(directory: Path, parent_pid: int | None) -> subprocess.Popen[bytes]:
    """Start an agent for the worker folder, in a session of its own so that a Ctrl-C at the worker spares it."""
    command = [sys.executable, "-m", "tailspan.agent", str(directory)]
    if parent_pid is not None:
        command += ["--parent-pid", str(parent_pid)]
    return subprocess.Popen(  # noqa: S603 (our own interpreter and module)
        command, stdin=subprocess.DEVNULL, env=plain_environment(os.environ), start_new_session=True, close_fds=True
    )


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would instrument the agent itself."""
    env = dict(environment)
    env["TAILSPAN_ENABLED"] = "0"
    paths = [
        path
        for path in env.get("PYTHONPATH", "").split(os.pathsep)
        if path and not any(part in path for part in _AUTO_INSTRUMENTATION)
    ]
    env["PYTHONPATH"] = os.pathsep.join(paths)
    return env
