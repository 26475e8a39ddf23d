"""Moves this process' wall clock by the seconds in the file TEST_CLOCK_FILE, and lets an agent look at it often."""

import os
import sys
import time
from pathlib import Path

_FILE = Path(os.environ["TEST_CLOCK_FILE"])
_time_ns = time.time_ns


def _stepped_ns() -> int:
    return _time_ns() + int(_FILE.read_text() or 0) * 1_000_000_000


time.time_ns = _stepped_ns
time.time = lambda: _stepped_ns() / 1e9

if "tailspan.agent" in sys.orig_argv:
    import tailspan.agent.main

    tailspan.agent.main.REANCHOR_S = 0.1
