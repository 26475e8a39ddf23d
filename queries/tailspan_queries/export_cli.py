"""The command `tailspan export`: requests, steps and layers for a trace viewer.

Writes a file; what was written and what was left out goes to standard error. Nothing is kept of a file that failed.
Exit codes: 0 also for an empty window, 2 for bad input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import console, options
from tailspan_queries.breakdown import plural
from tailspan_queries.client import DEFAULT_URL, URL_VARIABLE, connected
from tailspan_queries.empty import empty_note
from tailspan_queries.perfetto import Progress, Summary, export
from tailspan_queries.perfetto_file import STDOUT, trace_file
from tailspan_queries.perfetto_plan import Limits, plan_trace, plan_window
from tailspan_queries.perfetto_records import SPANS_PER_PAGE

DEFAULT_FILE = "tailspan-trace.json.gz"
VIEWER = "https://ui.perfetto.dev"
WINDOW_OPTIONS = ("since", "until", "service", "model", "instance")


@click.command("export")
@click.option("--perfetto", is_flag=True, help="As a Chrome/Perfetto trace (Trace Event Format, JSON).")
@click.option(
    "-o",
    "--output",
    default=DEFAULT_FILE,
    show_default=True,
    metavar="FILE",
    help="Packed if it ends with .gz; - is standard output.",
)
@click.option("--trace", "trace_id", default="", metavar="ID", help="One trace, and all that shared its engine steps.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 100_000), default=Limits().requests, show_default=True, help="Requests."
)
@click.option(
    "--steps", type=click.IntRange(0, 10_000_000), default=Limits().steps, show_default=True, help="Engine steps."
)
@options.selection_options
@click.option("--url", default=None, metavar="URL", help=f"ClickHouse [{URL_VARIABLE}, {DEFAULT_URL}].")
@click.pass_context
def export_command(
    context: click.Context,
    perfetto: bool,
    output: str,
    trace_id: str,
    limit: int,
    steps: int,
    chosen: options.Selection,
    url: str | None,
) -> None:
    """Write the requests of a window, or one trace with --trace, to open in a trace viewer.

    ID is a trace id, its first 6 digits or more, or a request id.
    """
    if not perfetto:
        raise UserError("export needs to know the format", "Add --perfetto")
    if trace_id and (given := given_options(context)):
        raise UserError(f"--trace and --{given[0]} do not go together", "A trace brings its own time; leave one out")
    with connected(url) as client:
        limits = Limits(limit, steps)
        plan = (
            plan_trace(client, trace_id, limits)
            if trace_id
            else plan_window(client, chosen.window, chosen.filters, limits)
        )
        with trace_file(output) as stream, progress_bar() as progress:
            summary = export(client, plan, stream, progress)
        if not trace_id and not plan.requests:
            console.note(empty_note(client, chosen.window, chosen.filters))
    for line in (summary_line(summary, output), *(f"left out: {line}" for line in plan.left_out)):
        console.note(line)
    if summary.cut_pages:
        console.note(f"left out: the last spans of traces that have more than {SPANS_PER_PAGE:,} together")
    if summary.steps_not_placed:
        console.note(f"{summary.steps_not_placed:,} steps have a device time whose begin is not known: not in its lane")


def given_options(context: click.Context) -> list[str]:
    """Return the options of the window and the filters that the user gave."""
    default = click.core.ParameterSource.DEFAULT
    return [name for name in WINDOW_OPTIONS if context.get_parameter_source(name) not in (None, default)]


def summary_line(summary: Summary, output: str) -> str:
    """Say what was written, and where to open it."""
    counts = [
        plural(summary.requests, "request"),
        f"{summary.shared:,} others that shared steps" if summary.shared else "",
        f"{summary.steps:,} steps" + (f" ({summary.sampled_steps:,} with layers)" if summary.sampled_steps else ""),
        f"{summary.worker_events:,} worker events" if summary.worker_events else "",
    ]
    where = "" if output == STDOUT else f"; open {output} at {VIEWER} or chrome://tracing"
    return f"{', '.join(filter(None, counts))}, {summary.events:,} events written{where}"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show how far the export is, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:<14}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console.console(sys.stderr), transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total)


def export_main(argv: list[str]) -> int:
    """Run `tailspan export`."""
    return run_click(export_command, argv)
