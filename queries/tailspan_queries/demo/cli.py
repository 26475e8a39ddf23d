"""`tailspan demo`: trace a real model under a real load and show where the time went.

Exit codes: 0 when the traces agree with the client's clock or not (both are shown), 1 when a part failed or a request
has no trace, 2 for bad input or environment, 130 when interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import console
from tailspan_queries.demo.engines import DEFAULT_ENGINE, ENGINES
from tailspan_queries.demo.model import ModelError
from tailspan_queries.demo.processes import ProgramError, interrupt_on_termination
from tailspan_queries.demo.progress import Progress
from tailspan_queries.demo.session import DemoResult, Options, run_demo
from tailspan_queries.demo.view import DEFAULT_DATA, demo_json, render_demo

REQUESTS, RATE_PER_S, SEED = 100, 2.0, 1
LOG_LINES = 25
"""How much of a log is printed when its program failed."""


@click.command("demo")
@click.option(
    "--requests", type=click.IntRange(1, 100_000), default=REQUESTS, show_default=True, help="Requests to send."
)
@click.option(
    "--rate",
    type=click.FloatRange(0.01, 1000.0),
    default=RATE_PER_S,
    show_default=True,
    help="Mean rate of arrival per second; requests come in bursts.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=SEED, show_default=True, help="Another seed, another load."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA,
    show_default=True,
    envvar="TAILSPAN_DATA",
    help="Folder for the spans and the logs; it is kept.",
)
@click.option(
    "--engine",
    type=click.Choice(tuple(ENGINES)),
    default=DEFAULT_ENGINE,
    show_default=True,
    help="What serves the model; vllm: the one of this Python environment.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(requests: int, rate: float, seed: int, data: Path, engine: str, as_json: bool) -> int:
    """Trace SmolLM2-135M under a bursty load and show where each request's time went.

    Prepares the model on the first run, starts a collector and a model server on free ports, sends the load, compares
    every trace with the client's own clock, and stops whatever it started. The spans stay in the data folder.
    """
    options = Options(requests, rate, seed, data.absolute(), engine)
    _make_folder(options.data)
    progress = Progress(console.console(sys.stderr), quiet=as_json)
    try:
        with interrupt_on_termination():
            result = run_demo(options, progress)
    except (ProgramError, ModelError) as error:
        _explain(error)
        return 1
    _show(result, as_json)
    return 0 if result.agreement.exactly_one_trace == result.agreement.requests and not result.errors else 1


def demo(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    return run_click(command, argv)


def _make_folder(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the data folder {data} cannot be made ({error.strerror})", "Name another one with --data or TAILSPAN_DATA"
        ) from error


def _explain(error: ProgramError | ModelError) -> None:
    sys.stderr.write(f"tailspan: failed: {error}\n")
    if isinstance(error, ProgramError):
        sys.stderr.writelines(f"  | {line}\n" for line in error.lines[-LOG_LINES:])


def _show(result: DemoResult, as_json: bool) -> None:
    if as_json:
        console.print_json(demo_json(result))
        return
    out = console.console()
    out.print(render_demo(result, out.width))
