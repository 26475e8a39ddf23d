"""The commands about who and what the tail is: `tailspan tail`, `different` and `fairness`.

Each asks ClickHouse over HTTP and prints a table, JSON or CSV to standard output; notes go to standard error.
Exit codes: 0 also for an empty window, 2 for bad input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

import math
import time

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import console, different_view, fairness_view, options, tail_view
from tailspan_queries import different as different_groups
from tailspan_queries import fairness as fairness_waits
from tailspan_queries import tail as tail_shares
from tailspan_queries.client import connected
from tailspan_queries.empty import empty_note, no_rows_note
from tailspan_queries.grouping import ATTRIBUTE
from tailspan_queries.layers_drift import parse_baseline
from tailspan_queries.records import TAIL_QUANTILE

BY_HELP = "model, instance, service, engine, priority, lora, outcome or attr:KEY."
LARGEST_SHARE = 50.0


def attribute_key(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Return what `--by` names: `attr:KEY`, as other commands have it, is the attribute KEY."""
    return value.removeprefix(ATTRIBUTE)


@click.command("tail")
@click.option(
    "--quantile",
    type=click.FloatRange(0, 1, max_open=True),
    default=TAIL_QUANTILE,
    show_default=True,
    help="Where the tail begins.",
)
@click.option(
    "--by", default=tail_shares.EVERYTHING, metavar="DIM", callback=attribute_key, help=f"A table for each {BY_HELP}"
)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=5, show_default=True, help="Tables with --by.")
@options.exact_option
@options.selection_options
@options.output_options
def tail_command(
    quantile: float,
    by: str,
    limit: int,
    exact: bool,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show what the tail is made of that the mean is not: shares of mean, tail, variance and critical path."""
    with connected(url) as client:
        report = tail_shares.tail_report(client, chosen.window, chosen.filters, quantile, by, limit, everything=exact)
        if not report.rows:
            console.note(empty_note(client, chosen.window, chosen.filters))
    if report.nobody_has_it:
        console.note(f"no request has the attribute {by}; `tailspan trace ID` lists those of a request")
    console.print_report(
        form,
        lambda: tail_view.tail_json(report),
        lambda: tail_view.tail_csv(report),
        lambda width: tail_view.render_tail(report, width),
        has_rows=report.rows and not report.nobody_has_it,
    )


@click.command("different")
@click.option("--slowest", default="1%", show_default=True, metavar="PERCENT", help="Which requests are the slow ones.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="Groups to list.")
@options.exact_option
@options.selection_options
@options.output_options
def different_command(
    slowest: str,
    limit: int,
    exact: bool,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show what is different about the slow requests: attributes that are over-represented among them."""
    share = parse_percent("--slowest", slowest)
    with connected(url) as client:
        report = different_groups.different_report(client, chosen.window, chosen.filters, share, everything=exact)
        if not report.requests:
            console.note(empty_note(client, chosen.window, chosen.filters))
    console.print_report(
        form,
        lambda: different_view.different_json(report),
        lambda: different_view.different_csv(report),
        lambda _width: different_view.render_different(report, limit),
        has_rows=report.requests,
    )


@click.command("fairness")
@click.option(
    "--by",
    default=fairness_waits.PRIORITY,
    show_default=True,
    metavar="DIM",
    callback=attribute_key,
    help=f"A line for each {BY_HELP}",
)
@click.option(
    "--times",
    type=click.FloatRange(1),
    default=fairness_waits.LONG,
    show_default=True,
    help="A wait is long above so many times the median.",
)
@click.option("--baseline", default="", metavar="A..B", help="Compare with that window instead of the first half.")
@click.option(
    "-n", "--waits", type=click.IntRange(0, 1000), default=5, show_default=True, help="Longest waits to list."
)
@options.exact_option
@options.selection_options
@options.output_options
def fairness_command(
    by: str,
    times: float,
    baseline: str,
    waits: int,
    exact: bool,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show who waits in the queue, by priority or another attribute: percentiles, starvation, tails that rise."""
    before = parse_baseline(baseline, time.time_ns()) if baseline else None
    with connected(url) as client:
        report = fairness_waits.fairness_report(
            client, chosen.window, chosen.filters, by, times, before, waits=waits, everything=exact
        )
        if report.everyone is None:
            console.note(no_rows_note(client, chosen.window, chosen.filters))
    console.print_report(
        form,
        lambda: fairness_view.fairness_json(report),
        lambda: fairness_view.fairness_csv(report),
        lambda width: fairness_view.render_fairness(report, width),
        has_rows=report.everyone is not None,
    )


def parse_percent(option: str, text: str) -> float:
    """Read `1%` or `1`.

    Raises: UserError if it is no percentage above 0 and up to 50.
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 < value <= LARGEST_SHARE:
        raise UserError(
            f"{option} {text!r} is no percentage of requests", "Write 1% for the slowest hundredth; 50% is most"
        )
    return value / 100


def tail(argv: list[str]) -> int:
    """Run `tailspan tail`."""
    return run_click(tail_command, argv)


def different(argv: list[str]) -> int:
    """Run `tailspan different`."""
    return run_click(different_command, argv)


def fairness(argv: list[str]) -> int:
    """Run `tailspan fairness`."""
    return run_click(fairness_command, argv)
