"""The commands about an engine's steps: `tailspan interference`, `preemption` and `engine`.

Each asks ClickHouse over HTTP and prints a table, JSON or CSV to standard output; notes go to standard error.
Exit codes: 0 also for an empty window, 2 for bad input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tailspan.cli import run_click
from tailspan_queries import breakdown, console, engines, engines_view, options
from tailspan_queries import interference as interference_report
from tailspan_queries import preemption as preemption_report
from tailspan_queries.client import Client, connected
from tailspan_queries.empty import has_requests, no_rows_note

DEFAULT_LINES = {"request": 10}
"""Lines that are listed without -n; of what is not named here, all."""
ALL_LINES = 10_000
Function = TypeVar("Function", bound=Callable[..., Any])


def breakdown_options(default: str) -> Callable[[Function], Function]:
    """Add --by and --limit."""

    def add(function: Function) -> Function:
        by = click.option(
            "--by", type=click.Choice(breakdown.BREAKDOWNS), default=default, show_default=True, help="A line for each."
        )
        limit = click.option("-n", "--limit", type=click.IntRange(1, ALL_LINES), help="Lines [10 requests, else all].")
        return by(limit(function))

    return add


def lines(by: str, limit: int | None) -> int:
    """Return how many lines to ask for."""
    return limit or DEFAULT_LINES.get(by, ALL_LINES)


def note_if_empty(client: Client, rows: object, chosen: options.Selection) -> None:
    """Say why there is nothing to show."""
    if not rows:
        console.note(no_rows_note(client, chosen.window, chosen.filters))


@click.command("interference")
@breakdown_options("model")
@options.selection_options
@options.output_options
def interference_command(
    by: str,
    limit: int | None,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show how much the prefills of other requests slowed decodes, and ITL in steps with and without prefill."""
    with connected(url) as client:
        report = interference_report.interference_report(client, chosen.window, chosen.filters, by, lines(by, limit))
        note_if_empty(client, report.rows, chosen)
    console.print_report(
        form,
        lambda: interference_report.interference_json(report),
        lambda: interference_report.interference_csv(report.rows),
        lambda width: interference_report.render_interference(report, width),
        has_rows=report.rows,
    )


@click.command("preemption")
@breakdown_options("engine")
@options.selection_options
@options.output_options
def preemption_command(
    by: str,
    limit: int | None,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show what preemption cost: evictions, time lost, and the tail with and without the evicted requests."""
    with connected(url) as client:
        report = preemption_report.preemption_report(client, chosen.window, chosen.filters, by, lines(by, limit))
        # That no request was evicted is an answer, if there were requests.
        none_evicted = by == "request" and not report.rows and has_requests(client, chosen.window, chosen.filters)
        note_if_empty(client, report.rows or none_evicted, chosen)
    console.print_report(
        form,
        lambda: preemption_report.preemption_json(report),
        lambda: preemption_report.preemption_csv(report.rows),
        lambda width: preemption_report.render_preemption(report, width),
        has_rows=report.rows or none_evicted,
    )


@click.command("engine")
@click.option(
    "--by", type=click.Choice(("engine", "minute")), default="engine", show_default=True, help="A line for each."
)
@click.option("--gap-ms", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Shortest gap to list.")
@click.option("-n", "--gaps", type=click.IntRange(0, 10_000), default=5, show_default=True, help="Gaps to list.")
@options.selection_options
@options.output_options
def engine_command(
    by: str,
    gap_ms: float,
    gaps: int,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show how busy each engine was and how long it idled between steps: launch-bound or scheduler-bound."""
    threshold_ns = round(gap_ms * 1e6)
    with connected(url) as client:
        report = engines.engine_report(client, chosen.window, chosen.filters, by, threshold_ns, gaps)
        note_if_empty(client, report.rows, chosen)
    console.print_report(
        form,
        lambda: engines_view.engines_json(report),
        lambda: engines_view.engines_csv(report),
        lambda width: engines_view.render_engines(report, width),
        has_rows=report.rows,
    )


def interference(argv: list[str]) -> int:
    """Run `tailspan interference`."""
    return run_click(interference_command, argv)


def preemption(argv: list[str]) -> int:
    """Run `tailspan preemption`."""
    return run_click(preemption_command, argv)


def engine(argv: list[str]) -> int:
    """Run `tailspan engine`."""
    return run_click(engine_command, argv)
