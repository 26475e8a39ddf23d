"""The programs that the demo starts, and the promise that none of them is left behind.

Each runs in a session of its own with its output in a log file, and with a random mark in its environment that its
children inherit, wherever they go. Leaving the `with` block stops what still runs: first a SIGTERM to the program
itself, then, when it has ended or its time is up, SIGKILL to every process that carries the mark.

Errors: `ProgramError` names the program, how it ended and its log with what it said last.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tailspan.errors import UserError

USER_ERROR, USER_ERROR_PREFIX = 2, "tailspan: error: "
"""How a `tailspan` command ends when the user can mend it; such a line is passed on as it is."""
STOPPED = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
"""Exit codes of a program that was asked to end."""
MARK = "TAILSPAN_DEMO_MARK"
LOG_PREFIX = re.compile(
    r"(\(\w+ pid=\d+\) *)*((?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]+)?([-\d]+ [:\d]+ \[[^]]*\] +)?"
)
"""What stands before the message in a line of a server's log."""
EXCEPTION = re.compile(r"[\w.]*(Error|Exception): ")
"""How the last line of a traceback begins."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")
POLL_S = 0.1
REAP_S = 10.0


class ProgramError(Exception):
    """A program of the demo failed; the message is one line and names its log, `lines` are from that log."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Program:
    """A started program and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    mark: str
    stop_s: float

    def check(self) -> None:
        """Raise ProgramError if it has ended, UserError if it is a tailspan command that says what to do."""
        code = self.process.poll()
        if code is None:
            return
        line = last_line(self.log)
        if code == USER_ERROR and line.startswith(USER_ERROR_PREFIX):
            what, _, remedy = line.removeprefix(USER_ERROR_PREFIX).partition(". ")
            raise UserError(what, remedy)
        raise self.ended(code)

    def check_stopped(self) -> None:
        """Raise ProgramError if it ended in another way than a SIGTERM asks for."""
        code = self.process.returncode
        if code not in STOPPED:
            raise self.ended(code)

    def ended(self, code: int) -> ProgramError:
        """Return the error for an end that nobody asked for. What it raised tells more than what it printed last."""
        lines = read_lines(self.log) if code < 0 else lines_to_exception(self.log)
        return self.failure(f"ended with {describe_exit(code)}", lines)

    def failure(self, what: str, lines: Sequence[str]) -> ProgramError:
        """Return the error that says what happened and quotes the last of these lines of the log."""
        said = message(lines[-1]) if lines else "no output"
        return ProgramError(f"{self.name} {what}: {said} (log: {self.log})", lines)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `ready()`; raise ProgramError if the program ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready after {timeout_s:.0f} s", read_lines(self.log))
            time.sleep(POLL_S)

    def stop(self) -> int | None:
        """End the program and its descendants; return its exit code, None if it had to be killed."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                self.process.terminate()
        polite: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            polite = self.process.wait(self.stop_s)
        self.kill_marked()
        return polite

    def kill_marked(self) -> None:
        """Kill whatever is left of the program and its descendants."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP_S)


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    folder: Path | None = None,
    stop_s: float = 30.0,
) -> Iterator[Program]:
    """Run `command` for the length of the `with` block."""
    mark = f"{MARK}={secrets.token_hex(16)}"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (our own commands)
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, MARK: mark.partition("=")[2]},
            cwd=folder,
            start_new_session=True,
        )
    program = Program(name, process, log, mark, stop_s)
    try:
        yield program
    except BaseException:
        # Something failed or the user pressed Ctrl-C: do not wait for a polite end.
        replace(program, stop_s=min(stop_s, 5.0)).stop()
        raise
    program.stop()


def marked(mark: str) -> list[int]:
    """Return the processes of this user whose environment carries a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that every program is stopped."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def script(name: str) -> str:
    """Return the path of a command that is installed beside this Python."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if not found:
        raise UserError(f"the command `{name}` is not installed", "Run: pip install 'tailspan[demo]'")
    return found


def clean_environment(**settings: str) -> dict[str, str]:
    """Return this process's environment without settings of OpenTelemetry and tailspan, plus `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TAILSPAN_"))}
    return kept | settings


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def answers(url: str) -> bool:
    """Return whether an HTTP GET of a loopback URL succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 (our own loopback URL)
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def describe_exit(code: int) -> str:
    """Return how a process ended, in words."""
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def last_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    return next(reversed(read_lines(log)), "no output").strip()


def lines_to_exception(log: Path) -> list[str]:
    """Return a log up to its last exception, all of it without one.

    An exception that only points to another one above it, as vLLM's first process raises, is passed over.
    """
    lines = read_lines(log)
    for index in range(len(lines) - 1, -1, -1):
        if EXCEPTION.match(message(lines[index])) and "root cause above" not in lines[index]:
            return lines[: index + 1]
    return lines


def read_lines(log: Path) -> list[str]:
    """Return the lines of a log that say something, without colours."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["no log"]
    return [line.rstrip() for line in COLOUR.sub("", text).splitlines() if line.strip()]


def message(line: str) -> str:
    """Return a log line without process, level, time and place."""
    return LOG_PREFIX.sub("", line, count=1).strip()
