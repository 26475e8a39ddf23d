"""Which process this is, and whether another one still lives."""

from __future__ import annotations

from pathlib import Path


def process_start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 when there is none, or only a zombie is left of it.

    Source: fields 3 and 22 of /proc/PID/stat, proc(5). Together with the pid it names a process for good.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    fields = stat.rpartition(b")")[2].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def command_name() -> bytes:
    """Return the name of this process' program, at most 64 bytes."""
    import sys

    program = Path(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable)
    name = program.parent.name if program.name == "__main__.py" else program.name
    return name.removesuffix(".py").encode("utf-8", "replace")[:64]
