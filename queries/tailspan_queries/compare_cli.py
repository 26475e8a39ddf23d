"""The command `tailspan compare`: two windows, or two values of an attribute.

It asks ClickHouse over HTTP and prints a table, JSON or CSV to standard output; notes go to standard error.
Exit codes: 0 also for an empty window, 2 for bad input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import compare_view, console, options
from tailspan_queries.client import Client, connected
from tailspan_queries.compare import compare_groups
from tailspan_queries.compare_read import DEFAULT_LIMIT
from tailspan_queries.compare_records import Comparison, Group
from tailspan_queries.empty import empty_note
from tailspan_queries.filters import Filters
from tailspan_queries.times import Window, parse_range

MOST_REQUESTS = 2_000_000
Function = TypeVar("Function", bound=Callable[..., object])


def side_options(function: Function) -> Function:
    """Add the options that say what is compared with what."""
    for option in (
        click.option(
            "--versus", "versus", default="", metavar="VALUE", help="The other value of --by-attribute, the later one."
        ),
        click.option(
            "--by-attribute",
            "attribute",
            default="",
            metavar="KEY=VALUE",
            help="Compare requests of --since to --until that have this attribute with those that have --versus.",
        ),
        click.option("--after", default="", metavar="C..D", help="The later window; each end as --since takes it."),
        click.option("--before", default="", metavar="A..B", help="The earlier window, such as 2d..1d."),
    ):
        function = option(function)
    return function


@click.command("compare")
@side_options
@click.option("--adjust/--no-adjust", default=True, help="Take out what changed lengths of prompts and outputs moved.")
@click.option("--full", is_flag=True, help="Show all percentiles of every stage.")
@click.option(
    "--requests",
    "limit",
    type=click.IntRange(1, MOST_REQUESTS),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Requests of each side to read; of more, a sample.",
)
@options.exact_option
@options.selection_options
@options.output_options
def compare_command(
    before: str,
    after: str,
    attribute: str,
    versus: str,
    adjust: bool,
    full: bool,
    limit: int,
    exact: bool,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show whether latency changed between two windows or versions, at the median and in the tail."""
    if attribute or versus:
        if before or after:
            raise UserError("--before/--after and --by-attribute are two questions", "Ask one after the other")
        sides = attribute_groups(attribute, versus, chosen.window, chosen.filters)
    else:
        sides = window_groups(before, after, chosen.filters, time.time_ns())
    with connected(url) as client:
        report = compare_groups(client, *sides, adjust=adjust, limit=None if exact else limit)
        for note in notes(client, report):
            console.note(note)
    console.print_report(
        form,
        lambda: compare_view.comparison_json(report),
        lambda: compare_view.comparison_csv(report),
        lambda _width: compare_view.render_comparison(report, full=full),
        has_rows=report.lines,
    )


def window_groups(before: str, after: str, filters: Filters, now_ns: int) -> tuple[Group, Group]:
    """Return the sides of two windows.

    Raises: UserError if one is missing, or they overlap.
    """
    if not before or not after:
        raise UserError(
            "compare needs two windows, or two values of an attribute",
            "Write --before 2h..1h --after 1h..now, or --by-attribute service.version=1.2 --versus 1.3",
        )
    earlier, later = parse_range("--before", before, now_ns), parse_range("--after", after, now_ns)
    if earlier.since_ns < later.until_ns and later.since_ns < earlier.until_ns:
        raise UserError("--before and --after overlap", "End the earlier window where the later one begins")
    return Group((earlier,), filters), Group((later,), filters)


def attribute_groups(attribute: str, versus: str, window: Window, filters: Filters) -> tuple[Group, Group]:
    """Return the sides of two values of an attribute.

    Raises: UserError if a value is missing, or both are the same.
    """
    key, _, value = attribute.partition("=")
    if not key or not value or not versus or value == versus:
        raise UserError(
            "--by-attribute needs a key and two different values",
            "Write --by-attribute service.version=1.2 --versus 1.3",
        )
    return Group((window,), filters, key, value), Group((window,), filters, key, versus)


def notes(client: Client, report: Comparison) -> list[str]:
    """Return a line for each side without requests."""
    found = []
    for name, sample in (("before", report.before), ("after", report.after)):
        group = sample.group
        if sample.size:
            continue
        if group.key:
            found.append(f"{name}: no request of the window has {group.key}={group.value}")
        else:
            found.append(f"{name}: {empty_note(client, group.windows[0], group.filters)}")
    return found


def compare(argv: list[str]) -> int:
    """Run `tailspan compare`."""
    return run_click(compare_command, argv)
