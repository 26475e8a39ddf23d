"""The command `tailspan regress`, for cron and CI: did a stage get slower than it was?

It asks ClickHouse over HTTP and prints a table, JSON or CSV to standard output; notes go to standard error.
Exit codes: 0 nothing regressed, also for an empty window or baseline; 1 something regressed, and is named; 2 for bad
input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import console, options, regress_view
from tailspan_queries import regress as guard
from tailspan_queries.client import Client, connected
from tailspan_queries.compare_cli import MOST_REQUESTS
from tailspan_queries.compare_read import DEFAULT_LIMIT
from tailspan_queries.compare_records import STATISTICS
from tailspan_queries.empty import empty_note
from tailspan_queries.times import Window, parse_range

REGRESSED = 1
MOST_DAYS = 60


@click.command("regress")
@click.option("--baseline", default="", metavar="A..B", help="Hold against this window instead of previous days.")
@click.option(
    "--days",
    type=click.IntRange(1, MOST_DAYS),
    default=guard.DEFAULT_DAYS,
    show_default=True,
    help="Hold against the same hours of so many previous days.",
)
@click.option(
    "--statistic",
    "statistics",
    type=click.Choice(tuple(STATISTICS)),
    multiple=True,
    default=("p99",),
    show_default=True,
    help="What to look at; may be repeated.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 10),
    default=guard.THRESHOLD,
    show_default=True,
    help="Rise from which on it is a regression, as a share.",
)
@click.option(
    "--requests",
    "limit",
    type=click.IntRange(1, MOST_REQUESTS),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Requests of window and baseline to read; of more, a sample.",
)
@options.exact_option
@options.selection_options
@options.output_options
def regress_command(
    baseline: str,
    days: int,
    statistics: tuple[str, ...],
    threshold: float,
    limit: int,
    exact: bool,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> int:
    """Exit with 1 and name the stage if one got slower than it was; for cron and CI."""
    named = parse_range("--baseline", baseline, time.time_ns()) if baseline else None
    if named and named.since_ns < chosen.window.until_ns and chosen.window.since_ns < named.until_ns:
        raise UserError("the baseline overlaps the window", "End the earlier one where the later one begins")
    with connected(url) as client:
        windows = (named,) if named else guard.previous_days(client, chosen.window, chosen.filters, days)
        if not windows:
            console.note(f"no requests at these hours of the {days} previous days: nothing to hold against")
            return 0
        most = None if exact else limit
        report = guard.regress(client, chosen.window, windows, chosen.filters, statistics, threshold, most)
        for note in empty_sides(client, chosen, windows, report):
            console.note(note)
    console.print_report(
        form,
        lambda: regress_view.regression_json(report),
        lambda: regress_view.regression_csv(report),
        lambda _width: regress_view.render_regression(report),
        has_rows=report.findings,
    )
    return REGRESSED if report.regressed else 0


def empty_sides(
    client: Client, chosen: options.Selection, windows: Sequence[Window], report: guard.Regression
) -> list[str]:
    """Return a line for a window and for a baseline without requests."""
    found = []
    if not report.comparison.after.size:
        found.append(empty_note(client, chosen.window, chosen.filters))
    if not report.comparison.before.size:
        found.append(f"baseline: {empty_note(client, windows[0], chosen.filters)}")
    return found


def regress(argv: list[str]) -> int:
    """Run `tailspan regress`."""
    return run_click(regress_command, argv)
