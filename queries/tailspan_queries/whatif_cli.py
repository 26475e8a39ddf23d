"""The commands that predict: `tailspan whatif` and `tailspan advise`.

Both read requests and steps from ClickHouse and replay them here; notes go to standard error.
Exit codes: 0 also for an empty window, 2 for bad input, a ClickHouse that cannot be read, or a replay too far off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_queries import advise_view, console, options, whatif_view
from tailspan_queries.advise import ADVISED_LIMIT, ADVISED_SEEDS, FACTOR, RANKINGS, advice
from tailspan_queries.client import Client, connected
from tailspan_queries.empty import no_rows_note
from tailspan_queries.whatif import SEEDS, what_if
from tailspan_queries.whatif_read import DEFAULT_LIMIT
from tailspan_queries.whatif_records import STAGES, Base, Change

MOST_REQUESTS = 1_000_000
FACTORS = click.FloatRange(0.01, 1000.0)
Function = TypeVar("Function", bound=Callable[..., object])


def change_options(function: Function) -> Function:
    """Add the options that say what would be different."""
    for option in (
        click.option(
            "--prompt-cache", type=click.FloatRange(0.0, 1.0), help="At least this share of each prompt is cached."
        ),
        click.option("--prompt-tokens", type=FACTORS, default=1.0, metavar="X", help="Prompts X times as long."),
        click.option("--output-tokens", type=FACTORS, default=1.0, metavar="X", help="Outputs X times as long."),
        click.option(
            "--arrivals",
            type=FACTORS,
            default=1.0,
            metavar="X",
            help="Requests come X times as fast; 0.5: two replicas.",
        ),
        click.option("--kv-cache", type=FACTORS, default=1.0, metavar="X", help="A KV cache X times as large."),
        click.option("--step-tokens", type=click.IntRange(1), metavar="N", help="Tokens of a step at most."),
        click.option("--batch", type=click.IntRange(1), metavar="N", help="Requests in the batch at most."),
        click.option("--layer", multiple=True, metavar="PART=X", help="A part of the model X times as fast."),
        click.option("--speedup", multiple=True, type=FACTORS, metavar="X", help="X times as fast, for --stage."),
        click.option("--stage", multiple=True, type=click.Choice(STAGES), help="A stage that becomes faster."),
    ):
        function = option(function)
    return function


def model_options(function: Function) -> Function:
    """Add the options about the replay."""
    for option in (
        click.option("--force", is_flag=True, help="Predict however far the replay is off."),
        click.option(
            "--base-step-tokens", type=click.IntRange(1), metavar="N", help="Limit a step had [default: from steps]."
        ),
        click.option(
            "--base-batch", type=click.IntRange(1), metavar="N", help="Limit the batch had [default: from steps]."
        ),
    ):
        function = option(function)
    return function


def requests_option(default: int) -> Callable[[Function], Function]:
    """Return the option that bounds how many requests are read."""
    return click.option(
        "--requests",
        type=click.IntRange(1, MOST_REQUESTS),
        default=default,
        show_default=True,
        help="Replay the latest N requests at most.",
        metavar="N",
    )


@click.command("whatif")
@change_options
@model_options
@requests_option(DEFAULT_LIMIT)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=SEEDS, show_default=True, help="Replays, each with other noise."
)
@options.selection_options
@options.output_options
def whatif_command(
    stage: tuple[str, ...],
    speedup: tuple[float, ...],
    layer: tuple[str, ...],
    batch: int | None,
    step_tokens: int | None,
    kv_cache: float,
    arrivals: float,
    output_tokens: float,
    prompt_tokens: float,
    prompt_cache: float | None,
    base_batch: int | None,
    base_step_tokens: int | None,
    force: bool,
    requests: int,
    seeds: int,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Predict latency with something changed, by replaying the recorded requests through a model of the scheduler.

    Options add up to one question. Without any: how far the replay is off from what was measured. All services and
    engines are replayed, each by itself, and their requests counted together; --service leaves one.
    """
    change = Change(
        speedups(stage, speedup), layer, 1.0, 1.0, batch, step_tokens, kv_cache, arrivals, prompt_tokens,
        output_tokens, prompt_cache,
    )  # fmt: skip
    with connected(url) as client:
        report = what_if(
            client, chosen.window, chosen.filters, change,
            seeds=seeds, limit=requests, base=Base(base_batch, base_step_tokens), force=force,
        )  # fmt: skip
        if not report.measures:
            tell_nothing(client, chosen, report.notes)
    console.print_report(
        form,
        lambda: whatif_view.what_if_json(report),
        lambda: whatif_view.what_if_csv(report),
        lambda _width: whatif_view.render_what_if(report),
        has_rows=report.measures,
    )


def speedups(stages: tuple[str, ...], factors: tuple[float, ...]) -> tuple[tuple[str, float], ...]:
    """Pair stages with factors; one factor is for all of them.

    Raises: UserError if they do not pair.
    """
    if stages and len(factors) == 1:
        factors *= len(stages)
    if len(stages) != len(factors):
        raise UserError(
            f"{len(stages)} times --stage and {len(factors)} times --speedup do not pair",
            "Write --stage decode --speedup 1.3; one --speedup is for all stages",
        )
    return tuple(zip(stages, factors, strict=True))


def tell_nothing(client: Client, chosen: options.Selection, notes: tuple[str, ...]) -> None:
    """Say why nothing could be replayed."""
    for note in notes or (no_rows_note(client, chosen.window, chosen.filters),):
        console.note(note)


@click.command("advise")
@click.option(
    "--factor", type=click.FloatRange(1.01, 1000.0), default=FACTOR, show_default=True, help="How much faster."
)
@click.option(
    "--by", type=click.Choice(RANKINGS), default=RANKINGS[0], show_default=True, help="Rank by the gain of it."
)
@model_options
@requests_option(ADVISED_LIMIT)
@options.selection_options
@options.output_options
def advise_command(
    factor: float,
    by: str,
    base_batch: int | None,
    base_step_tokens: int | None,
    force: bool,
    requests: int,
    chosen: options.Selection,
    url: str | None,
    form: str,
) -> None:
    """Rank the stages by what making each of them faster would gain, with the usual remedies and their costs."""
    with connected(url) as client:
        report = advice(
            client, chosen.window, chosen.filters, factor, by,
            seeds=ADVISED_SEEDS, limit=requests, base=Base(base_batch, base_step_tokens), force=force,
        )  # fmt: skip
        if not report.rows:
            tell_nothing(client, chosen, report.base.notes)
    console.print_report(
        form,
        lambda: advise_view.advice_json(report),
        lambda: advise_view.advice_csv(report),
        lambda _width: advise_view.render_advice(report),
        has_rows=report.rows,
    )


def whatif(argv: list[str]) -> int:
    """Run `tailspan whatif`."""
    return run_click(whatif_command, argv)


def advise(argv: list[str]) -> int:
    """Run `tailspan advise`."""
    return run_click(advise_command, argv)
