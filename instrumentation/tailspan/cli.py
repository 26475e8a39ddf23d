"""The `tailspan` command: one table of commands, each loaded only when it is called.

A worker host has only the light dependencies, so a command that needs an extra says which one to install.

Errors: `UserError` and wrong usage print one line and exit with 2; see `EXIT_CODES`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailspan.command_help import GROUPS, epilog
from tailspan.errors import UserError

if TYPE_CHECKING:
    import click

EXIT_CODES = {
    0: "success",
    1: "tailspan itself failed; `tailspan regress`: a stage got slower",
    2: "the input or the environment is wrong; the message says what to do",
    3: "schema migrations are pending (only `tailspan migrate --check`)",
    130: "interrupted",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the command table: where it lives and which extra it needs."""

    target: str
    help: str
    extra: str | None = None


COMMANDS = {
    "demo": Command(
        "tailspan_queries.demo.cli:demo", "trace a real model under a real load and show the result", "demo"
    ),
    "up": Command("tailspan_collector.cli:up", "start the collector with an embedded ClickHouse", "collector"),
    "collector": Command(
        "tailspan_collector.cli:collector", "start the collector for a ClickHouse server", "collector"
    ),
    "migrate": Command("tailspan_collector.migrate_cli:migrate", "show or apply schema migrations", "collector"),
    "retention": Command("tailspan_collector.retention_cli:retention_main", "how long data is kept", "collector"),
    "rejects": Command("tailspan_collector.rejects_cli:rejects_main", "what ClickHouse could not store", "collector"),
    "run": Command("tailspan.run:run", "run a command with tracing switched on"),
    "agent": Command("tailspan.agent.main:main", "drain the rings of a worker and export spans"),
    "blackbox": Command("tailspan.agent.blackbox:blackbox", "say what a dead worker was doing, from its ring files"),
    "doctor": Command("tailspan.doctor:doctor", "say what is instrumented, what is not, and why"),
    "stages": Command("tailspan_queries.cli:stages", "latency percentiles and shares of every stage", "collector"),
    "trace": Command("tailspan_queries.cli:trace", "one request as a waterfall", "collector"),
    "slowest": Command(
        "tailspan_queries.cli:slowest", "the slowest requests and the stage that made them slow", "collector"
    ),
    "interference": Command(
        "tailspan_queries.engine_cli:interference", "how much others' prefills slowed decodes", "collector"
    ),
    "preemption": Command("tailspan_queries.engine_cli:preemption", "what evictions cost, and whom", "collector"),
    "engine": Command("tailspan_queries.engine_cli:engine", "busy and idle time of engines between steps", "collector"),
    "advise": Command("tailspan_queries.whatif_cli:advise", "which stage to make faster first, and how", "collector"),
    "compare": Command(
        "tailspan_queries.compare_cli:compare", "whether latency changed between two windows or versions", "collector"
    ),
    "different": Command(
        "tailspan_queries.contribution_cli:different", "what is different about the slow requests", "collector"
    ),
    "export": Command("tailspan_queries.export_cli:export_main", "a trace file for Perfetto or Chrome", "collector"),
    "fairness": Command(
        "tailspan_queries.contribution_cli:fairness", "who waits in the queue, and starves", "collector"
    ),
    "gpu": Command("tailspan_queries.layer_cli:gpu", "busy, idle and launch-bound time of devices", "collector"),
    "latency": Command(
        "tailspan_queries.latency_cli:latency", "TTFT, ITL, TPOT, rates, and goodput under SLOs", "collector"
    ),
    "layers": Command(
        "tailspan_queries.layer_cli:layers", "which layers take the time, of a step and end to end", "collector"
    ),
    "optimizations": Command(
        "tailspan_queries.optimizations_cli:optimizations",
        "what was changed, what it brought, what it costs",
        "collector",
    ),
    "report": Command(
        "tailspan_queries.report.cli:report", "one page (HTML) with plots of all this, to send around", "collector"
    ),
    "query": Command("tailspan_queries.cli:query", "run a shipped or your own .sql file", "collector"),
    "tail": Command(
        "tailspan_queries.contribution_cli:tail", "what the tail is made of that the mean is not", "collector"
    ),
    "whatif": Command(
        "tailspan_queries.whatif_cli:whatif", "predict latency with something changed, by replay", "collector"
    ),
    "regress": Command(
        "tailspan_queries.regress_cli:regress", "whether a stage got slower: exit code 1, for cron and CI", "collector"
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())  # noqa: T201 (the command line's own output)
        return 0
    if args[0] in ("-V", "--version"):
        from tailspan.version import __version__

        print(f"tailspan {__version__}")  # noqa: T201
        return 0
    try:
        return load(args[0])(args[1:])
    except UserError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        import os

        if os.environ.get("TAILSPAN_DEBUG"):
            raise
        advice = "Run again with TAILSPAN_DEBUG=1 for the traceback, and report it"
        print(f"tailspan: failed: {type(error).__name__}: {error}. {advice}.", file=sys.stderr)  # noqa: T201
        return 1


def load(name: str) -> Callable[[list[str]], int]:
    """Import the function behind a command name."""
    command = COMMANDS.get(name)
    if command is None:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 1)
        raise UserError(
            f"unknown command {name!r}",
            f"Did you mean {near[0]}? `tailspan --help` lists all" if near else f"Use one of: {', '.join(COMMANDS)}",
        )
    module_name, _, function = command.target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if command.extra is None or (error.name or "").split(".")[0].startswith("tailspan"):
            raise
        raise UserError(
            f"`tailspan {name}` needs the package {error.name!r}, which is not installed",
            f"Run: pip install 'tailspan[{command.extra}]'",
        ) from error
    loaded: Callable[[list[str]], int] = getattr(module, function)
    return loaded


def usage() -> str:
    """Return the overview that `tailspan --help` prints."""
    width = max(map(len, COMMANDS))
    groups = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {COMMANDS[name].help}" for name in names)])
        for title, names in GROUPS.items()
    )
    return (
        "usage: tailspan COMMAND [ARGUMENTS]    tailspan COMMAND --help\n\n"
        "Where does the time of an LLM request go: which stage, which layer, and did the change help?\n\n"
        f"{groups}\n"
    )


def fail(message: str) -> int:
    """Print one line for a mistake the user can mend; return exit code 2.

    It may quote what others sent: what could steer a terminal is left out.
    """
    line = "".join(sign if sign.isprintable() else " " for sign in message)
    print(f"tailspan: error: {line}", file=sys.stderr)  # noqa: T201
    return 2


def run_click(command: click.Command, argv: list[str]) -> int:
    """Run a click command with tailspan's exit codes and one-line errors; its help ends with examples."""
    import click

    name = command.name or ""
    command.epilog = command.epilog or epilog(name)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            inner.epilog = inner.epilog or epilog(f"{name} {inner.name}")
        if not argv and not command.invoke_without_command:
            argv = ["--help"]
    try:
        result: Any = command.main(args=argv, prog_name=f"tailspan {name}", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.Abort:
        return 130
    except UserError as error:
        return fail(str(error))
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        message = error.format_message().rstrip(".")
        stop = "" if message.endswith("?") else "."
        return fail(f"{message}{stop} See: {context.command_path if context else f'tailspan {name}'} --help")
    return result if isinstance(result, int) else 0
