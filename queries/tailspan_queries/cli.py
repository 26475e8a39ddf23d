"""The reading commands: `tailspan stages`, `trace`, `slowest` and `query`.

Each asks ClickHouse over HTTP and prints a table, JSON or CSV to standard output; notes go to standard error.
Exit codes: 0 also for an empty window, 2 for bad input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import console, named, options, stages_by_cli, stages_view, traces_view
from tailspan_queries import slowest as slowest_report
from tailspan_queries import stages as stages_report
from tailspan_queries import traces as traces_report
from tailspan_queries.client import connected
from tailspan_queries.empty import empty_note, no_rows_note
from tailspan_queries.records import EXACT, ROLLUP

KINDS = ("wall", "busy", "gpu", "all")


@click.command("stages")
@options.selection_options
@click.option("--exact/--rollup", default=None, help="Read raw spans or sketches by minute and hour (±0.8 %).")
@click.option("--time", "kind", type=click.Choice(KINDS), default="wall", show_default=True, help="Times to list.")
@stages_by_cli.grouping_options
@click.option("--stage", "names", multiple=True, metavar="NAME", help="With --by or --over: stage to show; repeatable.")
@options.output_options
def stages_command(
    chosen: options.Selection,
    exact: bool | None,
    kind: str,
    by: str,
    over: str,
    groups: int,
    names: tuple[str, ...],
    url: str | None,
    form: str,
) -> None:
    """Show latency percentiles of every stage, and its share of all requests and of the slowest 1 %."""
    method = None if exact is None else EXACT if exact else ROLLUP
    if by or over or names:
        stages_by_cli.show(chosen, stages_by_cli.Question(by, over, groups, names, kind, method, form), url)
        return
    with connected(url) as client:
        report = stages_report.stage_report(client, chosen.window, chosen.filters, method=method)
        if not report.requests:
            console.note(empty_note(client, chosen.window, chosen.filters))
    if form == "json":
        console.print_json(stages_view.stages_json(report))
    elif form == "csv":
        console.print_csv(*stages_view.stages_csv(report))
    elif report.requests:
        kinds = stages_view.KINDS if kind == "all" else (kind,)
        console.print_table(stages_view.render_stages(report, kinds, console.console().width))
    elif report.warnings:
        console.print_table(*stages_view.warning_texts(report))


@click.command("trace")
@click.argument("trace_id", metavar="ID")
@options.output_options
def trace_command(trace_id: str, url: str | None, form: str) -> None:
    """Show one trace as a waterfall. ID is a trace id, its first 6 digits or more, or a request id."""
    with connected(url) as client:
        report = traces_report.trace_report(client, trace_id)
    console.print_report(
        form,
        lambda: traces_view.trace_json(report),
        lambda: traces_view.trace_csv(report),
        lambda width: traces_view.render_trace(report, width),
    )


@click.command("slowest")
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Requests to list.")
@options.selection_options
@options.output_options
def slowest_command(limit: int, chosen: options.Selection, url: str | None, form: str) -> None:
    """List the slowest requests, each with the stage that took most of its time."""
    with connected(url) as client:
        requests = slowest_report.slowest_requests(client, chosen.window, chosen.filters, limit)
        if not requests:
            console.note(empty_note(client, chosen.window, chosen.filters))
    console.print_report(
        form,
        lambda: slowest_report.slowest_json(chosen.window, chosen.filters, requests),
        lambda: slowest_report.slowest_csv(requests),
        lambda width: slowest_report.render_slowest(requests, width),
        has_rows=requests,
    )


@click.command("query")
@click.argument("name", metavar="[NAME|FILE]", required=False)
@click.option("--param", "values", multiple=True, metavar="NAME=VALUE", help="Value of a {NAME:Type} parameter.")
@options.window_options
@options.filter_options
@options.output_options
def query_command(
    name: str | None,
    values: tuple[str, ...],
    since: str,
    until: str,
    service: str,
    model: str,
    instance: str,
    url: str | None,
    form: str,
) -> None:
    """Run a shipped query or a .sql file; without a name, list the shipped ones."""
    if name is None:
        list_queries(form)
        return
    query = named.find_query(name)
    given = named.parse_parameters(query, values)
    chosen = options.selection(since, until, service, model, instance)
    if ignored := [option for option in chosen.filters.chosen if option not in query.placeholders]:
        raise UserError(f"query {name} does not filter by {ignored[0]}", f"Leave --{ignored[0]} out")
    with connected(url) as client:
        result = client.execute(query, {**chosen.window.parameters, **chosen.filters.parameters, **given})
        if not result.rows and {"since", "until"} <= set(query.placeholders):
            console.note(no_rows_note(client, chosen.window, chosen.filters))
    console.print_report(
        form,
        lambda: named.result_json(query, result),
        lambda: (result.columns, result.rows),
        lambda width: named.render_result(result, width),
        has_rows=result.rows,
    )


def list_queries(form: str) -> None:
    """Print name and purpose of every shipped query."""
    queries = named.list_queries()
    console.print_report(
        form,
        lambda: {"queries": [{"name": name, "purpose": purpose} for name, purpose in queries]},
        lambda: (("name", "purpose"), queries),
        lambda _: named.render_list(queries),
    )


def stages(argv: list[str]) -> int:
    """Run `tailspan stages`."""
    return run_click(stages_command, argv)


def trace(argv: list[str]) -> int:
    """Run `tailspan trace`."""
    return run_click(trace_command, argv)


def slowest(argv: list[str]) -> int:
    """Run `tailspan slowest`."""
    return run_click(slowest_command, argv)


def query(argv: list[str]) -> int:
    """Run `tailspan query`."""
    return run_click(query_command, argv)
