"""The command `tailspan report`: one HTML page to send around after an incident.

Asks ClickHouse over HTTP and writes a file; where it is and what it says first goes to standard error.
Exit codes: 0 also for an empty window, 2 for bad input, a file that cannot be written or a ClickHouse that cannot be
read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import console, options
from tailspan_queries.client import DEFAULT_URL, URL_VARIABLE, connected
from tailspan_queries.report import answers as asked
from tailspan_queries.report.page import TITLE, render_page

STANDARD_OUTPUT = "-"


@click.command("report")
@click.option(
    "-o", "--output", default="report.html", show_default=True, metavar="FILE", help="Page to write; - for output."
)
@click.option("--title", default=TITLE, show_default=True, metavar="TEXT", help="What the page is called.")
@click.option(
    "--version-attribute",
    default=asked.VERSION,
    show_default=True,
    metavar="KEY",
    help="Resource attribute whose changes are marked as deployments.",
)
@options.selection_options
@click.option("--url", default=None, metavar="URL", help=f"ClickHouse [{URL_VARIABLE}, {DEFAULT_URL}].")
def report_command(
    output: str,
    title: str,
    version_attribute: str,
    chosen: options.Selection,
    url: str | None,
) -> None:
    """Write one self-contained page: diagnosis, percentiles, time series, layers and the slowest requests, drawn."""
    if output != STANDARD_OUTPUT and not Path(output).parent.is_dir():
        raise cannot_write(output, "no such folder")
    with connected(url) as client:
        found = asked.gather(client, chosen.window, chosen.filters, version_attribute)
    page = render_page(found, title)
    if output == STANDARD_OUTPUT:
        sys.stdout.write(page)
        return
    try:
        Path(output).write_text(page, encoding="utf-8")
    except OSError as error:
        raise cannot_write(output, error.strerror or str(error)) from error
    console.note(f"wrote {output} ({len(page.encode()) / 1000:,.0f} kB): {found.empty or found.stages.diagnosis}")


def cannot_write(output: str, why: str) -> UserError:
    """The error for a page that has no place."""
    return UserError(f"cannot write {output}: {why}", "Name another file with -o")


def report(argv: list[str]) -> int:
    """Run `tailspan report`."""
    return run_click(report_command, argv)
