"""The commands about the device and the model on it: `tailspan gpu` and `tailspan layers`.

Each asks ClickHouse over HTTP and prints a table, JSON or CSV to standard output; notes go to standard error.
Exit codes: 0 also for an empty window, 2 for bad input or a ClickHouse that cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import console, gpu_view, layers_contribution_view, layers_view, options
from tailspan_queries import gpu as gpu_devices
from tailspan_queries import layers as layer_times
from tailspan_queries import layers_contribution as contribution
from tailspan_queries import layers_drift as drift
from tailspan_queries.client import Client, connected
from tailspan_queries.empty import no_rows_note, without_layers_note
from tailspan_queries.layers_records import Speedup
from tailspan_queries.layers_speedup import parse_speedup
from tailspan_queries.times import Window

DEFAULT_LINES = {"part": 20}
"""Lines that are listed without -n; of what is not named here, all."""
Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Question:
    """What `tailspan layers` was asked, beside the window and the filters."""

    by: str
    phase: str
    batch: bool
    baseline: str
    end_to_end: bool
    speedups: tuple[str, ...]
    limit: int | None
    form: str

    @property
    def lines(self) -> int:
        """How many lines to ask for."""
        return self.limit or DEFAULT_LINES.get(self.by, layer_times.EVERY_LINE)


def layer_options(function: Function) -> Function:
    """Add the options of `tailspan layers` about what to show."""
    for option in (
        click.option(
            "-n", "--limit", type=click.IntRange(1, layer_times.EVERY_LINE), help="Lines [20 parts, else all]."
        ),
        click.option(
            "--speedup", multiple=True, metavar="PART=FACTOR", help="Predict --e2e with a part that much faster."
        ),
        click.option("--e2e", "end_to_end", is_flag=True, help="Show what each part is of end-to-end time."),
        click.option("--baseline", default="", metavar="A..B", help="Show what changed since that window: 2h..1h."),
        click.option("--batch", is_flag=True, help="By batch size."),
        click.option("--phase", type=click.Choice(layer_times.PHASES), default="all", show_default=True),
        click.option(
            "--by",
            type=click.Choice(layer_times.BREAKDOWNS),
            default="kind",
            show_default=True,
            help="A line for each.",
        ),
    ):
        function = option(function)
    return function


@click.command("layers")
@layer_options
@options.selection_options
@options.output_options
def layers_command(
    by: str,
    phase: str,
    batch: bool,
    baseline: str,
    end_to_end: bool,
    speedup: tuple[str, ...],
    limit: int | None,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Show which layers of the model take the device's time, what changed, and what that is of end-to-end latency."""
    question = Question(by, phase, batch, baseline, end_to_end or bool(speedup), speedup, limit, form)
    check(question)
    now_ns = time.time_ns()
    before = drift.parse_baseline(baseline, now_ns) if baseline else None
    factors = tuple(parse_speedup(text) for text in speedup)
    with connected(url) as client:
        if question.end_to_end:
            show_contribution(client, chosen, question, factors)
        elif before is not None:
            show_drift(client, chosen, question, before)
        else:
            show_layers(client, chosen, question)


def check(question: Question) -> None:
    """Refuse options that do not go together.

    Raises: UserError that names two of them.
    """
    about_time = "--speedup" if question.speedups else "--e2e" if question.end_to_end else ""
    views = [name for name in ("--batch" * question.batch, "--baseline" * bool(question.baseline), about_time) if name]
    if len(views) > 1:
        raise UserError(f"{views[0]} and {views[1]} are two questions", "Ask one after the other")
    if about_time and question.phase != "all":
        raise UserError(f"{about_time} is about whole requests", "Leave --phase out; prefill and decode have columns")


def show_layers(client: Client, chosen: options.Selection, question: Question) -> None:
    """Print how long the parts take."""
    report = layer_times.layer_report(
        client, chosen.window, chosen.filters, question.by, question.phase, batch=question.batch, limit=question.lines
    )
    if not report.rows:
        console.note(without_layers_note(client, chosen.window, chosen.filters))
    console.print_report(
        question.form,
        lambda: layers_view.layers_json(report),
        lambda: layers_view.layers_csv(report),
        lambda width: layers_view.render_layers(report, width),
        has_rows=report.rows,
    )


def show_drift(client: Client, chosen: options.Selection, question: Question, baseline: Window) -> None:
    """Print what changed against a baseline."""
    report = drift.drift_report(
        client, chosen.window, baseline, chosen.filters, question.by, question.phase, question.lines
    )
    if not report.rows:
        console.note(without_layers_note(client, chosen.window, chosen.filters, baseline))
    console.print_report(
        question.form,
        lambda: drift.drift_json(report),
        lambda: drift.drift_csv(report),
        lambda _: drift.render_drift(report),
        has_rows=report.rows,
    )


def show_contribution(
    client: Client, chosen: options.Selection, question: Question, speedups: tuple[Speedup, ...]
) -> None:
    """Print what the parts are of end-to-end time."""
    report = contribution.contribution_report(client, chosen.window, chosen.filters, question.by, speedups)
    if not report.parts:
        console.note(without_layers_note(client, chosen.window, chosen.filters))
    console.print_report(
        question.form,
        lambda: layers_contribution_view.contribution_json(report),
        lambda: layers_contribution_view.contribution_csv(report),
        lambda _: layers_contribution_view.render_contribution(report, question.lines),
        has_rows=report.parts,
    )


@click.command("gpu")
@options.selection_options
@options.output_options
def gpu_command(chosen: options.Selection, url: str | None, form: str) -> None:
    """Show whether the device computed, waited for its host between steps, or was held up by launches."""
    with connected(url) as client:
        report = gpu_devices.gpu_report(client, chosen.window, chosen.filters)
        if not report.rows:
            console.note(no_rows_note(client, chosen.window, chosen.filters))
    console.print_report(
        form,
        lambda: gpu_view.gpu_json(report),
        lambda: gpu_view.gpu_csv(report),
        lambda width: gpu_view.render_gpu(report, width),
        has_rows=report.rows,
    )


def layers(argv: list[str]) -> int:
    """Run `tailspan layers`."""
    return run_click(layers_command, argv)


def gpu(argv: list[str]) -> int:
    """Run `tailspan gpu`."""
    return run_click(gpu_command, argv)
