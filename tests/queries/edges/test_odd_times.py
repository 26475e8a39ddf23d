"""Odd times: midnight, changes of clocks, the zone of the reader, the ends of time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailspan.cli import main
from tailspan_queries.times import iso
from tests.queries.edges.conftest import Remembering
from tests.queries.edges.odd_requests import DAY, Odd
from tests.support.collector import RunningCollector, run_tailspan

Capture = pytest.CaptureFixture[str]


def test_midnight_divides_nothing(answer: Any, odd: dict[str, Odd]) -> None:
    """A window across midnight has all its requests; by day they are in two lines that sum to it."""
    whole = answer("midnight", "stages", "--exact")["stages"][-1]
    assert whole["count"] == 90
    days = answer("midnight", "stages", "--over", "1d", "--stage", "request")["rows"]
    counts = {row["bucket"]: row["count"] for row in days if row["stage"] == "request"}
    midnight = (odd["midnight"].window.since_ns // DAY + 1) * DAY
    assert counts == {iso(midnight - DAY): 45, iso(midnight): 45}
    assert answer("midnight", "stages", "--rollup")["stages"][-1]["count"] == 90


@pytest.mark.parametrize(
    ("since", "until", "hours"),
    [
        ("2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00", 23),
        ("2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00", 25),
        # The hour that comes twice, told apart by its offset, and both of them.
        ("2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", 1),
        ("2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00", 2),
        # The hour that there is not in Berlin: without an offset it is UTC, where it is.
        ("2026-03-29T02:00", "2026-03-29T03:00", 1),
    ],
)
def test_a_local_day_is_as_long_as_it_was(
    capsys: Capture, ask: Any, full_client: Remembering, since: str, until: str, hours: int
) -> None:
    """Days and hours of a change of clocks have the length that they had, and two requests in each hour."""
    ask(full_client)
    assert main(["latency", "--since", since, "--until", until, "--format", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["seconds"] == hours * 3600
    assert row["requests"] == 2 * hours


def test_the_zone_of_the_reader_changes_nothing(store: RunningCollector) -> None:
    """In Berlin, where clocks change within the window, the answer is the same as in UTC."""
    words = ("slowest", "--since", "2026-10-24T22:00", "--until", "2026-10-25T23:00", "-n", "60")
    command = (*words, "--url", store.url, "--format", "csv")
    here, there = (run_tailspan(*command, TZ=zone) for zone in ("UTC", "Europe/Berlin"))
    assert here.returncode == 0
    assert here.stdout.count("\n") == 51
    assert there.stdout == here.stdout
    assert there.stderr == here.stderr == ""


def test_the_ends_of_time_are_in_the_window(answer: Any) -> None:
    """Requests of 1970 and of 2261 are found, at their times."""
    starts = [row["start"] for row in answer("ages", "slowest")["requests"]]
    assert sorted(starts) == ["1970-01-01T00:00:00Z", "2261-12-31T23:59:00Z"]
