"""What to tell a user whose window holds no request: when and for what there are any."""

from __future__ import annotations

from datetime import timedelta

from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window, clock, datetime_ns


def empty_note(client: Client, window: Window, filters: Filters) -> str:
    """Return one line: what was searched, what time range has data, and the option that reaches it."""
    chosen = f" for {filters}" if filters.chosen else ""
    searched = f"no requests{chosen} between {clock(window.since_ns)} and {clock(window.until_ns)} UTC"
    window = window.whole_minutes
    row = client.run("data_range", {**window.parameters, **filters.parameters}).records()[0]
    if not row["requests"] and filters.chosen:
        everything = client.run("data_range", {**window.parameters, **ALL.parameters}).records()[0]
        if everything["requests"]:
            return f"{searched}, nor at any other time; `tailspan query services --since 30d` lists what there is"
    if not row["requests"]:
        return f"{searched}; there is no data yet: start a worker with `tailspan run -- COMMAND`"
    first, end = row["first_minute"], row["last_minute"] + timedelta(minutes=1)
    since, until = (f"{moment:%Y-%m-%dT%H:%MZ}" for moment in (first, end))
    return (
        f"{searched}; there are {row['requests']:,} from {clock(datetime_ns(first))} to {clock(datetime_ns(end))} UTC: "
        f"use --since {since} --until {until}"
    )


def has_requests(client: Client, window: Window, filters: Filters) -> bool:
    """Return whether any request began in the window."""
    row = client.run("data_range", {**window.whole_minutes.parameters, **filters.parameters}).records()[0]
    return bool(row["window_requests"])


def no_rows_note(client: Client, window: Window, filters: Filters) -> str:
    """Return one line for a query without rows: there are no requests, or nothing of what it asks for."""
    row = client.run("data_range", {**window.whole_minutes.parameters, **filters.parameters}).records()[0]
    if row["window_requests"]:
        return f"the query found nothing among the {row['window_kept']:,} requests of the window"
    return empty_note(client, window, filters)


def without_layers_note(client: Client, window: Window, filters: Filters, baseline: Window | None = None) -> str:
    """Return one line for a window of which no layer is known: there are no requests, or nothing timed their layers."""
    row = client.run("data_range", {**window.whole_minutes.parameters, **filters.parameters}).records()[0]
    if not row["window_requests"] and baseline is None:
        return empty_note(client, window, filters)
    if baseline is not None:
        return "no sampled steps in window and baseline that could be compared (10 alike in the baseline are needed)"
    return (
        f"no layer was timed in the steps of the {row['window_kept']:,} requests of the window: workers time them "
        "while TAILSPAN_LAYER_BUDGET is above 0; `tailspan doctor` says whether yours do"
    )
