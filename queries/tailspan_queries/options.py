"""The options that every reading command takes, as click decorators, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click

from tailspan import attributes
from tailspan_queries.client import DEFAULT_URL, URL_VARIABLE
from tailspan_queries.console import FORMATS
from tailspan_queries.filters import Filters
from tailspan_queries.times import Window, parse_window

DEFAULT_SINCE = "1h"
FILTER_KEYS = {
    "instance": attributes.SERVICE_INSTANCE,
    "model": attributes.GEN_AI_MODEL,
    "service": attributes.SERVICE_NAME,
}
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """Which requests a command is about."""

    window: Window
    filters: Filters


def selection(since: str, until: str, service: str, model: str, instance: str) -> Selection:
    """Read window and filters from the options."""
    return Selection(parse_window(since, until), Filters(service, model, instance))


def window_options(function: Function) -> Function:
    """Add --since and --until."""
    for option in (
        click.option("--until", default="now", show_default=True, metavar="WHEN", help="End of the window, exclusive."),
        click.option(
            "--since",
            default=DEFAULT_SINCE,
            show_default=True,
            metavar="WHEN",
            help="Begin of the window: 15m, 2h, 1d ago, or a time such as 2026-11-29T14:00Z (UTC).",
        ),
    ):
        function = option(function)
    return function


def filter_options(function: Function) -> Function:
    """Add --service, --model and --instance."""
    for name, key in FILTER_KEYS.items():
        option = click.option(f"--{name}", default="", metavar="NAME", help=f"Only requests with this {key}.")
        function = option(function)
    return function


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of window and filters; what they choose comes as `chosen`."""

    @wraps(function)
    def command(*, since: str, until: str, service: str, model: str, instance: str, **others: Any) -> Any:
        return function(chosen=selection(since, until, service, model, instance), **others)

    return window_options(filter_options(command))


def exact_option(function: Function) -> Function:
    """Add --exact."""
    return click.option("--exact", is_flag=True, help="Read all requests, however many.")(function)


def output_options(function: Function) -> Function:
    """Add --format and --url."""
    for option in (
        click.option("--url", default=None, metavar="URL", help=f"ClickHouse [{URL_VARIABLE}, {DEFAULT_URL}]."),
        click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True),
    ):
        function = option(function)
    return function
