"""What the reports about an engine's steps share: what a line is about, and how a table begins.

In: a window, filters, and one of `BREAKDOWNS`. Out: text and empty tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailspan_queries.filters import Filters
from tailspan_queries.times import Window, clock

if TYPE_CHECKING:
    from rich.table import Table

BREAKDOWNS = ("model", "instance", "engine", "minute", "request", "all")
"""A line for each of these; values of the parameter `by` of the queries that take one."""
TITLES = {"engine": "engine", "minute": "minute (UTC)", "request": "trace", "all": ""}
SHORT_ID = 12
"""Digits of a trace id in a narrow terminal; `tailspan trace` takes them."""
NARROW = 100
FOR_P99 = 100
"""Requests that put one of them beyond p99."""
UNKNOWN = "(unknown)"
"""Key of what names no model, instance or engine."""


def headline(amount: str, window: Window, filters: Filters) -> str:
    """Say how much of which time the report is about."""
    between = f"{clock(window.since_ns)} to {clock(window.until_ns)} UTC"
    chosen = " · ".join(f"{name} {value}" for name, value in filters.chosen.items())
    return " · ".join(filter(None, (amount, between, chosen)))


def plural(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def requests_read(kept: int, requests: int, *, sampled: bool) -> str:
    """Say how many requests were read, or stored, and how many they stand for."""
    text = plural(kept, "request")
    return f"{text} {'read' if sampled else 'kept'} of about {requests:,}" if kept < requests else text


def key_text(by: str, key: str, width: int) -> str:
    """Return a line's key as it is printed."""
    if by == "request" and width < NARROW:
        return key[:SHORT_ID]
    return key or UNKNOWN


def few_requests(requests: Sequence[int]) -> list[str]:
    """Return a caution if the largest line holds too few requests for a p99."""
    most = max(requests, default=FOR_P99)
    return [f"only {plural(most, 'request')}: p99 rests on the slowest few (at least {FOR_P99} needed)"] * (
        most < FOR_P99
    )


def look_at(trace_id: str) -> str:
    """Return the command that shows a trace, short enough to stay in one line."""
    return f"the request that lost most: tailspan trace {trace_id[:SHORT_ID]}"


def new_table(first: str, *numbers: str) -> Table:
    """Return an empty table with a column of text and columns of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")
    # A long name goes on in the next line: nothing is cut.
    table.add_column(first, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table
