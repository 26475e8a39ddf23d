"""`tailspan run -- CMD`: start a command with tracing switched on, and leave only when its spans are delivered."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from tailspan import engines
from tailspan.agent import settings as agent_settings
from tailspan.agent.launch import ENDED_FILE, launch
from tailspan.errors import UserError
from tailspan.recorder.process import new_worker_dir
from tailspan.settings import WORKER_DIR, Settings, chosen_engines

_AUTOLOAD = Path(__file__).parent / "autoload"
"""First on the command's PYTHONPATH, so that Python itself loads the instrumentation."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(argv: list[str]) -> int:
    """Run the command; return its exit code (128 + N when signal N ended it)."""
    arguments = _parse(argv)
    program = shutil.which(arguments.command[0])
    if program is None:
        raise UserError(f"command not found: {arguments.command[0]}", "Give a program on PATH after `--`")
    command = [program, *arguments.command[1:]]
    _check_engines()
    try:
        settings = Settings.from_environment()
        agent_settings.check()
        directory = new_worker_dir(settings)
        agent = launch(directory, os.getpid())
    except (OSError, UserError) as error:
        # A worker that serves without traces is better than one that does not serve.
        remedy = "" if isinstance(error, UserError) else ". Set TAILSPAN_RUNTIME_DIR to a folder on tmpfs"
        print(f"tailspan: not tracing: {error}{remedy}", file=sys.stderr)  # noqa: T201
        return _run_command(command, dict(os.environ) | {"TAILSPAN_ENABLED": "0"})
    try:
        return _run_command(command, _traced_environment(directory))
    finally:
        _finish(agent, directory, arguments.linger)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tailspan run",
        usage="tailspan run [--linger SECONDS] -- COMMAND [ARGUMENTS]",
        description="Start an inference worker with tracing switched on. Where spans go is set by the standard "
        "OTEL_EXPORTER_OTLP_* variables; default: the collector of `tailspan up` on this host.",
    )
    parser.add_argument("--linger", type=float, default=30.0, help="longest time to deliver after the command's end")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.command and arguments.command[0] == "--":
        del arguments.command[0]
    if not arguments.command:
        raise UserError("no command to run", "Use: tailspan run -- COMMAND [ARGUMENTS]")
    return arguments


def _check_engines() -> None:
    names = chosen_engines(os.environ)
    unknown = sorted((names or frozenset()) - engines.ENGINES.keys())
    if unknown:
        raise UserError(f"TAILSPAN_ENGINES names an unknown engine: {', '.join(unknown)}", _known_engines())


def _known_engines() -> str:
    return f"Use one or more of: {', '.join(engines.ENGINES)}"


def _traced_environment(directory: Path) -> dict[str, str]:
    env = dict(os.environ)
    env[WORKER_DIR] = str(directory)
    env["TAILSPAN_ENABLED"] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_AUTOLOAD), env.get("PYTHONPATH", ""))))
    return env


def _run_command(command: list[str], env: dict[str, str]) -> int:
    child = subprocess.Popen(command, env=env)  # noqa: S603 (running the user's command is the purpose)

    def forward(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    # A Ctrl-C reaches the command by itself, since it is in the same process group.
    signal.signal(signal.SIGINT, lambda *_: None)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _finish(agent: subprocess.Popen[bytes], directory: Path, linger_s: float) -> None:
    with contextlib.suppress(FileNotFoundError):  # the agent refused its settings and left
        (directory / ENDED_FILE).touch()
    try:
        agent.wait(linger_s)
    except subprocess.TimeoutExpired:
        print("tailspan: some spans are not delivered yet; the agent goes on trying", file=sys.stderr)  # noqa: T201
