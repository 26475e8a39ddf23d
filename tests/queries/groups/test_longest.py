"""The longest requests and waits of a window are found in the minutes that the rollup says can hold them."""

import pytest

from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.slowest import slowest_requests
from tailspan_queries.times import Window
from tests.queries.groups.grouped_traffic import Grouped

MINUTE_NS = 60_000_000_000


def windows_around(start_ns: int, days: Window) -> list[Window]:
    """Return windows that begin or end at a moment, or a nanosecond off it."""
    return [
        Window(start_ns, days.until_ns),
        Window(start_ns + 1, days.until_ns),
        Window(days.since_ns, start_ns),
        Window(days.since_ns, start_ns + 1),
        Window(start_ns, start_ns + MINUTE_NS),
    ]


def within(grouped: list[Grouped], window: Window, filters: Filters) -> list[Grouped]:
    """Return the requests that began in a window and pass the filters."""
    return [
        item
        for item in grouped
        if window.since_ns <= item.request.start_ns < window.until_ns
        and all(getattr(item.request, name) == value for name, value in filters.chosen.items())
    ]


@pytest.mark.parametrize("filters", [ALL, Filters(model="small")], ids=["all", "a model"])
@pytest.mark.parametrize("limit", [1, 4])
def test_the_slowest_of_windows_that_end_at_the_slowest_of_all(
    client: Client, grouped: list[Grouped], days: Window, filters: Filters, limit: int
) -> None:
    """A longest request just outside of the window neither hides nor replaces those within."""
    slowest = max(within(grouped, days, filters), key=lambda item: item.request.e2e_ns)
    for window in windows_around(slowest.request.start_ns, days):
        expected = sorted((item.request.e2e_ns for item in within(grouped, window, filters)), reverse=True)[:limit]
        assert [row.e2e_ns for row in slowest_requests(client, window, filters, limit)] == expected


def test_the_longest_waits_of_windows_that_end_at_the_longest_of_all(
    client: Client, grouped: list[Grouped], days: Window
) -> None:
    """A longest wait just outside of the window neither hides nor replaces those within."""
    waits = []
    for item in grouped:
        begin_ns = item.request.start_ns
        for stage in item.request.stages:
            if stage.name == "queue":
                waits.append((stage.wall_ns, begin_ns, item.request.e2e_ns))
            begin_ns += stage.wall_ns
    longest_begin_ns = max(waits)[1]
    for window in windows_around(longest_begin_ns, days):
        expected = sorted((wait for wait in waits if window.since_ns <= wait[1] < window.until_ns), reverse=True)[:3]
        found = client.run("longest_waits", {**window.parameters, "limit": 3}).records()
        assert [(row["wait_ns"], row["e2e_ns"]) for row in found] == [(wait, e2e) for wait, _, e2e in expected]
