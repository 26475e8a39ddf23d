"""What `tailspan stages --by` and `--over` print, and the options that `tailspan latency` shares with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tailspan.errors import UserError
from tailspan_queries import console, stages_by_view
from tailspan_queries.client import connected
from tailspan_queries.empty import empty_note
from tailspan_queries.grouping import ATTRIBUTE, DIMENSIONS, GROUP_LIMIT, STEPS, parse_grouping
from tailspan_queries.options import Selection
from tailspan_queries.records import STAGE_ORDER, Method
from tailspan_queries.stages_by import StagesByReport, stages_by_report
from tailspan_queries.stages_view import KINDS

MOST_GROUPS = 1000
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Question:
    """What the command was asked, beside the window and the filters."""

    by: str
    over: str
    groups: int
    names: tuple[str, ...]
    kind: str
    method: Method | None
    form: str


def grouping_options(function: Function) -> Function:
    """Add --by, --over and --groups."""
    for option in (
        click.option(
            "--groups",
            type=click.IntRange(1, MOST_GROUPS),
            default=GROUP_LIMIT,
            show_default=True,
            help="Groups to list, those with the most requests.",
        ),
        click.option("--over", default="", metavar="STEP", help=f"A line for each {STEPS} (UTC)."),
        click.option("--by", default="", metavar="DIM", help=f"By {', '.join(DIMENSIONS)} or {ATTRIBUTE}KEY."),
    ):
        function = option(function)
    return function


def show(chosen: Selection, question: Question, url: str | None) -> None:
    """Ask and print.

    Raises: UserError for a stage without --by or --over, one that no request has, and as `stages_by_report` says.
    """
    if not question.by and not question.over:
        raise UserError("--stage chooses tables of --by and --over", "Add --by model, or leave --stage out")
    grouping = parse_grouping(question.by, question.over, chosen.window, question.groups)
    one = question.names[0] if len(question.names) == 1 else ""
    with connected(url) as client:
        report = stages_by_report(client, chosen.window, chosen.filters, grouping, stage=one, method=question.method)
        if not report.rows:
            console.note(empty_note(client, chosen.window, chosen.filters))
    check_names(report, question.names)
    if question.form == "json":
        console.print_json(stages_by_view.stages_by_json(report))
    elif question.form == "csv":
        console.print_csv(*stages_by_view.stages_by_csv(report))
    elif report.rows:
        kinds = KINDS if question.kind == "all" else (question.kind,)
        console.print_table(stages_by_view.render_stages_by(report, question.names, kinds, console.console().width))


def check_names(report: StagesByReport, names: tuple[str, ...]) -> None:
    """Refuse a stage that is neither known nor among the requests.

    Raises: UserError that names those there are.
    """
    known = {*STAGE_ORDER, *(row.stage for row in report.rows)}
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"there is no stage {unknown[0]!r}", f"Use one of: {', '.join(STAGE_ORDER)}")
