"""The command `tailspan latency`: TTFT, ITL, TPOT, end-to-end time, rates, failures and goodput.

Asks ClickHouse over HTTP and prints a table, JSON or CSV to standard output; notes go to standard error.
Exit codes: 0 also for an empty window, 2 for bad input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

import click

from tailspan.cli import run_click
from tailspan_queries import console, latency_data, latency_view, options
from tailspan_queries.client import connected
from tailspan_queries.empty import empty_note
from tailspan_queries.goodput import parse_slos
from tailspan_queries.grouping import parse_grouping
from tailspan_queries.latency import latency_report
from tailspan_queries.stages_by_cli import grouping_options


@click.command("latency")
@click.option("--slo", "limits", multiple=True, metavar="METRIC=TIME", help="ttft=500ms, itl, tpot or e2e; repeatable.")
@grouping_options
@options.exact_option
@options.selection_options
@options.output_options
def latency_command(
    limits: tuple[str, ...],
    by: str,
    over: str,
    groups: int,
    exact: bool,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show TTFT, ITL, TPOT and end-to-end time, tokens and requests a second, failures, and goodput under limits."""
    slos = parse_slos(limits)
    grouping = parse_grouping(by, over, chosen.window, groups)
    with connected(url) as client:
        report = latency_report(client, chosen.window, chosen.filters, grouping, slos, everything=exact)
        if not report.rows:
            console.note(empty_note(client, chosen.window, chosen.filters))
    console.print_report(
        form,
        lambda: latency_data.latency_json(report),
        lambda: latency_data.latency_csv(report),
        lambda _width: latency_view.render_latency(report),
        has_rows=report.rows,
    )


def latency(argv: list[str]) -> int:
    """Run `tailspan latency`."""
    return run_click(latency_command, argv)
