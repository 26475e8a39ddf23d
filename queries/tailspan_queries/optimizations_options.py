"""Options of `tailspan optimizations`: windows, numbers and where entries are sent.

Errors: `UserError` names the option, its value and what is allowed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tailspan.errors import UserError
from tailspan_queries.times import Window, parse_range

Function = TypeVar("Function", bound=Callable[..., Any])


def otlp_option(function: Function) -> Function:
    """Add --otlp."""
    return click.option(
        "--otlp",
        default="",
        metavar="URL",
        help="OTLP endpoint of the collector [OTEL_EXPORTER_OTLP_ENDPOINT, http://localhost:4317].",
    )(function)


def window_pair(names: tuple[str, str], texts: tuple[str, str]) -> tuple[Window, Window] | None:
    """Read the windows before and after; None if neither is given.

    Raises: UserError if only one is given or they overlap.
    """
    if not any(texts):
        return None
    if not all(texts):
        raise UserError(f"{names[0]} and {names[1]} belong together", "Give both")
    now_ns = time.time_ns()
    before, after = (parse_range(name, text, now_ns) for name, text in zip(names, texts, strict=True))
    if before.since_ns < after.until_ns and after.since_ns < before.until_ns:
        raise UserError(f"{names[0]} overlaps {names[1]}", "End the earlier window where the later one begins")
    return before, after


def check_number(option: str, value: float) -> None:
    """Refuse what click takes for a number and is none.

    Raises: UserError if it is not a number.
    """
    if math.isnan(value):
        raise UserError(f"{option} is {value}", "Give a number from 0 on")
