"""The command `tailspan optimizations`: what was changed to make requests faster, what it brought, and at what price.

`add`, `import` and `remove` write to the collector over OTLP, `list` and `report` read ClickHouse over HTTP.
Exit codes: 0 also for an empty ledger, 2 for bad input, a collector that takes nothing or a ClickHouse that cannot be
read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan.ids import new_trace_id
from tailspan_queries import console, optimizations_output, optimizations_store, optimizations_view, options
from tailspan_queries.client import Client, connected
from tailspan_queries.filters import Filters
from tailspan_queries.optimizations import ledger_report
from tailspan_queries.optimizations_credit import Run
from tailspan_queries.optimizations_import import parse_size, read_claims
from tailspan_queries.optimizations_options import check_number, otlp_option, window_pair
from tailspan_queries.optimizations_records import Cost, Optimization, Prices
from tailspan_queries.records import STAGE_ORDER
from tailspan_queries.times import Window, parse_range

STAGES = STAGE_ORDER
WINDOW = "FROM..TO, each as --since takes it: 4h..2h, or two times (UTC)."
EMPTY = "the ledger is empty: record a change with `tailspan optimizations add`"
NUMBER = click.FloatRange(0, 1e9)


@click.group("optimizations")
def optimizations_group() -> None:
    """Keep a ledger of what was changed, and report what each change brought and what it costs."""


@optimizations_group.command("add", short_help="Record a change by the windows without and with it.")
@click.option("--name", required=True, help="What was done.")
@click.option("--stage", type=click.Choice(STAGES), help="The stage it was meant for; request = end-to-end.")
@click.option("--kind", default="", help="Instead: a kind of layer, such as attention.")
@click.option("--layer", type=click.IntRange(0, 9999), help="Instead, or with --kind: the number of a decoder layer.")
@click.option("--before", required=True, metavar="A..B", help=f"The window without it. {WINDOW}")
@click.option("--after", required=True, metavar="C..D", help="The window with it.")
@click.option("--cost", default="", help="What it costs, in words.")
@click.option("--cost-gpu-memory", default="", metavar="SIZE", help="Device memory that it takes: 2GiB.")
@click.option("--cost-accuracy", type=click.FloatRange(0, 100), default=0.0, help="Percentage points of accuracy.")
@options.filter_options
@otlp_option
def add_command(
    name: str,
    stage: str | None,
    kind: str,
    layer: int | None,
    before: str,
    after: str,
    cost: str,
    cost_gpu_memory: str,
    cost_accuracy: float,
    service: str,
    model: str,
    instance: str,
    otlp: str,
) -> None:
    """Record an optimisation by the windows without and with it; its times are measured, never typed in."""
    is_part = bool(kind) or layer is not None
    if bool(stage) == is_part:
        raise UserError("it is not clear what the optimisation is about", "Give --stage, or else --kind and/or --layer")
    if not name.strip():
        raise UserError("--name is empty", "Say what was done")
    check_number("--cost-accuracy", cost_accuracy)
    windows = window_pair(("--before", "--after"), (before, after))
    memory = parse_size(cost_gpu_memory, "--cost-gpu-memory") if cost_gpu_memory else 0
    item = Optimization(
        f"{new_trace_id():032x}",
        name.strip(),
        stage or "",
        layer=layer,
        kind=kind.lower(),
        before=windows[0] if windows else None,
        after=windows[1] if windows else None,
        filters=Filters(service, model, instance),
        cost=Cost(cost, memory, cost_accuracy),
        recorded_by=optimizations_store.user(),
    )
    optimizations_store.write([item], otlp)
    print_line(f"recorded {item.id[: optimizations_view.SHORT_ID]} {item.name}")


@optimizations_group.command("import", short_help="Import numbers that somebody gave, as claims.")
@click.argument("file")
@click.option("--source", default="", help="What the claims are called [the name of the file].")
@otlp_option
def import_command(file: str, source: str, otlp: str) -> None:
    """Import claims from a JSON or CSV file: numbers that somebody gave, which reports show as claims."""
    entries = read_claims(file, source)
    optimizations_store.write(entries, otlp)
    print_line(f"imported {len(entries)} claims of {entries[0].source}")


@optimizations_group.command("remove", short_help="Take an entry out of the ledger.")
@click.argument("entry", metavar="ID")
@click.option("--url", default=None, metavar="URL", help="ClickHouse, as for `list`.")
@otlp_option
def remove_command(entry: str, url: str | None, otlp: str) -> None:
    """Take an entry out of the ledger: by the first digits of its id, or its name."""
    with connected(url) as client:
        item = optimizations_store.remove(client, entry, otlp)
        if not optimizations_store.wait_seen(client, [item]):
            console.note("the collector has the removal, ClickHouse does not show it yet")
    print_line(f"removed {item.id[: optimizations_view.SHORT_ID]} {item.name}")


@optimizations_group.command("list", short_help="List the entries of the ledger.")
@click.option("--removed", is_flag=True, help="Removed entries too.")
@options.output_options
def list_command(removed: bool, url: str | None, form: str) -> None:
    """List the entries of the ledger."""
    with connected(url) as client:
        entries = optimizations_store.read(client, removed=removed)
    if not entries:
        console.note(EMPTY)
    if form == "json":
        console.print_json(optimizations_output.list_json(entries))
    elif form == "csv":
        console.print_csv(*optimizations_output.list_csv(entries))
    elif entries:
        console.print_table(optimizations_view.render_list(entries))


@optimizations_group.command("report", short_help="What each change brought and cost, and what none explains.")
@click.option("--total-before", default="", metavar="A..B", help="Window of the total before [the earliest entry's].")
@click.option("--total-after", default="", metavar="C..D", help="Window of the total after [the latest entry's].")
@click.option(
    "--run",
    "runs",
    multiple=True,
    metavar="A..B=ID,ID",
    help="A window and what was on in it (none: nothing), to divide credit; give several.",
)
@click.option("--price-gpu-memory", type=NUMBER, default=0.0, metavar="MS", help="What a GiB is worth, ms a request.")
@click.option("--price-accuracy", type=NUMBER, default=0.0, metavar="MS", help="What a point of accuracy is worth, ms.")
@options.filter_options
@options.output_options
def report_command(
    total_before: str,
    total_after: str,
    runs: tuple[str, ...],
    price_gpu_memory: float,
    price_accuracy: float,
    service: str,
    model: str,
    instance: str,
    url: str | None,
    form: str,
) -> None:
    """Show what each optimisation brought of the whole change, what it costs, and what none explains."""
    check_number("--price-gpu-memory", price_gpu_memory)
    check_number("--price-accuracy", price_accuracy)
    totals = window_pair(("--total-before", "--total-after"), (total_before, total_after))
    prices = Prices(price_gpu_memory * 1e6, price_accuracy * 1e6)
    with connected(url) as client:
        show_report(client, totals, Filters(service, model, instance), prices, runs, form)


def show_report(
    client: Client,
    totals: tuple[Window, Window] | None,
    filters: Filters,
    prices: Prices,
    runs: Sequence[str],
    form: str,
) -> None:
    """Print the report."""
    entries = optimizations_store.read(client)
    read = [parse_run(text, entries) for text in runs]
    report = ledger_report(client, entries, totals=totals, filters=filters, prices=prices, runs=read)
    if not report.accounts:
        console.note(EMPTY)
    if form == "json":
        console.print_json(optimizations_output.ledger_json(report))
    elif form == "csv":
        console.print_csv(*optimizations_output.ledger_csv(report))
    elif report.accounts:
        console.print_table(optimizations_view.render_ledger(report))


def parse_run(text: str, entries: Sequence[Optimization]) -> Run:
    """Read `A..B=ID,ID` or `A..B=none`.

    Raises: UserError if it is not of this form or names what is not in the ledger.
    """
    window, equals, names = text.rpartition("=")
    if not equals:
        raise UserError(f"--run {text!r} does not say what was on", "Write --run 4h..2h=ID,ID or --run 4h..2h=none")
    chosen = [] if names.strip() in ("", "none") else names.split(",")
    on = frozenset(optimizations_store.find(entries, name).id for name in chosen)
    return Run(parse_range("--run", window, time.time_ns()), on)


def print_line(line: str) -> None:
    """Print a line of the command's own output."""
    click.echo(console.harmless(line))


def optimizations(argv: list[str]) -> int:
    """Run `tailspan optimizations`."""
    return run_click(optimizations_group, argv)
