"""Whole hours from the rollup by the hour, the rest from the one by minute: together they are the minutes."""

from dataclasses import replace
from typing import Any

import pytest

from tailspan_queries import catalog
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.grouping import Grouping
from tailspan_queries.times import Window, sql_time
from tests.queries.groups.grouped_traffic import BEGIN_NS, DAY_NS, HOUR_NS, MIDNIGHT_NS, TRACED_NS
from tests.support.collector import RunningCollector

MINUTE_NS = HOUR_NS // 60
WINDOWS = {
    "whole hours": Window(MIDNIGHT_NS - 5 * HOUR_NS, MIDNIGHT_NS + 7 * HOUR_NS),
    "off the hour at both ends": Window(MIDNIGHT_NS - 5 * HOUR_NS + 17 * MINUTE_NS, MIDNIGHT_NS + 361 * MINUTE_NS),
    "off the hour at the begin": Window(MIDNIGHT_NS - 3 * HOUR_NS - MINUTE_NS, MIDNIGHT_NS),
    "off the hour at the end": Window(MIDNIGHT_NS, MIDNIGHT_NS + HOUR_NS + 59 * MINUTE_NS),
    "within an hour": Window(MIDNIGHT_NS + 5 * MINUTE_NS, MIDNIGHT_NS + 55 * MINUTE_NS),
    "over the end of an hour": Window(MIDNIGHT_NS - 25 * MINUTE_NS, MIDNIGHT_NS + 25 * MINUTE_NS),
    "a day of an engine's own tracing": Window(TRACED_NS - 90 * MINUTE_NS, TRACED_NS + DAY_NS),
    "all": Window(BEGIN_NS - DAY_NS + MINUTE_NS, TRACED_NS + DAY_NS),
}
MEASURES = {"wall": "span_count", "busy": "span_count", "gpu": "gpu_count"}
LEVELS = "0.5, 0.9, 0.95, 0.99, 0.999"
NAMES = ("p50", "p90", "p95", "p99", "p999")


def minutes(store: RunningCollector, window: Window, filters: Filters, key: str = "''") -> dict[tuple[str, str], Any]:
    """Return counts, sums, maxima and percentiles by key and stage from the minutes alone."""
    conditions = [
        f"minute >= toDateTime64('{sql_time(window.since_ns)}', 9, 'UTC')",
        f"minute < toDateTime64('{sql_time(window.until_ns)}', 9, 'UTC')",
    ]
    conditions += [f"{name} = '{value}'" for name, value in filters.chosen.items()]
    measures = ", ".join(
        f"sum({kind}_sum_ns), max({kind}_max_ns), quantilesBFloat16WeightedMerge({LEVELS})({kind}_q)"
        for kind in MEASURES
    )
    rows = store.query(
        f"select toString({key}) as found, stage, sum(count), sum(span_count), sum(error_count), sum(gpu_count), "
        f"{measures} from tailspan.stage_minutes where {' and '.join(conditions)} group by found, stage"
    )
    return {(row[0], row[1]): row[2:] for row in rows}


def check(row: dict[str, Any], expected: list[Any]) -> None:
    """Compare a row of the answer with the minutes."""
    counts = [round(number) for number in expected[:4]]
    assert [row["count"], row["kept_count"], row["error_count"], row["gpu_count"]] == counts
    for place, kind in enumerate(MEASURES):
        total_ns, longest_ns, quantiles = expected[4 + 3 * place : 7 + 3 * place]
        assert row[f"{kind}_sum_ns"] == pytest.approx(total_ns, rel=1e-12, abs=1)
        if row[f"{kind}_p50_ns"] is None:
            assert total_ns == 0
            continue
        assert row[f"{kind}_max_ns"] == longest_ns
        found = [row[f"{kind}_{name}_ns"] for name in NAMES]
        assert found == [min(round(middle_ns), longest_ns) for middle_ns in quantiles]


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        *((name, ALL) for name in WINDOWS),
        ("off the hour at both ends", Filters(model="large")),
        ("off the hour at both ends", Filters(instance="worker-1")),
    ],
    ids=str,
)
def test_hours_and_minutes_together_are_the_minutes(
    client: Client, store: RunningCollector, name: str, filters: Filters
) -> None:
    """Whatever the minutes at which a window begins and ends, every number is the one that the minutes alone give."""
    window = WINDOWS[name]
    rows = client.run("stages_rollup", {**window.parameters, **filters.parameters}).records()
    expected = minutes(store, window, filters)
    assert {("", row["stage"]) for row in rows} == set(expected)
    for row in rows:
        check(row, expected["", row["stage"]])


@pytest.mark.parametrize("by", ["model", "service", "instance"])
def test_groups_of_hours_and_minutes_together_are_those_of_the_minutes(
    client: Client, store: RunningCollector, by: str
) -> None:
    """So is every number of every group."""
    window = WINDOWS["off the hour at both ends"]
    rows = client.run("stages_by_rollup", {**window.parameters, "by": by}).records()
    expected = minutes(store, window, ALL, by)
    assert {(row["key"], row["stage"]) for row in rows} == set(expected)
    assert len({row["key"] for row in rows}) > 1
    for row in rows:
        check(row, expected[row["key"], row["stage"]])


@pytest.mark.parametrize("step_seconds", [1800, 3600, 6 * 3600, 86_400])
def test_buckets_of_hours_are_those_of_the_minutes(client: Client, store: RunningCollector, step_seconds: int) -> None:
    """Over time, too, whether a bucket is cut from hours or is shorter than one."""
    window = WINDOWS["off the hour at both ends"]
    grouping = Grouping(step_seconds=step_seconds)
    rows = client.run("stages_by_rollup", {**window.parameters, **grouping.parameters}).records()
    key = f"intDiv(toUnixTimestamp(minute), {step_seconds}) * {step_seconds}"
    expected = minutes(store, window, ALL, key)
    assert {(f"{row['bucket'].timestamp():.0f}", row["stage"]) for row in rows} == set(expected)
    for row in rows:
        check(row, expected[f"{row['bucket'].timestamp():.0f}", row["stage"]])


def test_hours_are_read_where_they_answer(client: Client) -> None:
    """Of whole hours minutes are only counted, so that a long window costs a row an hour and stage."""
    window = WINDOWS["whole hours"]
    rows = client.run("stages_rollup", {**window.parameters, "measures": "wall"}).records()
    assert all(row["busy_p50_ns"] is None and row["gpu_p50_ns"] is None for row in rows)
    assert any(row["busy_sum_ns"] > 0 for row in rows)
    query = catalog.load("stages_rollup")
    estimate = client.execute(replace(query, sql=f"explain estimate {query.sql}"), window.parameters)
    assert [row["table"] for row in estimate.records() if row["rows"]] == ["stage_hours"]


@pytest.mark.parametrize(
    "known",
    [
        f"hour >= toDateTime({MIDNIGHT_NS // 1_000_000_000} + 3600)",
        f"hour != toDateTime({MIDNIGHT_NS // 1_000_000_000} + 7200) or model = 'large'",
        "hour < toDateTime(0)",
    ],
    ids=["those before an upgrade", "a part of one", "none"],
)
@pytest.mark.parametrize("name", ["stages_rollup", "stages_by_rollup"])
def test_hours_that_lack_requests_come_from_the_minutes(
    client: Client, store: RunningCollector, name: str, known: str
) -> None:
    """Where the rollup by the hour knows nothing of older requests, or not of all, every number is still the same."""
    window = WINDOWS["off the hour at both ends"]
    query = catalog.load(name)
    sql = query.sql.replace("from tailspan.stage_hours", f"from (select * from tailspan.stage_hours where {known})")
    assert sql.count(known) == 2
    rows = client.execute(replace(query, sql=sql), {**window.parameters, "by": ""}).records()
    expected = minutes(store, window, ALL)
    assert {row["stage"] for row in rows} == {stage for _, stage in expected}
    for row in rows:
        check(row, expected["", row["stage"]])


def test_a_part_of_an_hour_reads_that_hour(client: Client) -> None:
    """Of the minutes of a day those of the hour are read, and a granule at its ends."""
    query = catalog.load("stages_rollup")
    explained = replace(query, sql=f"explain indexes = 1 {query.sql}")
    lines = [row[0].strip("│├└─ ") for row in client.execute(explained, WINDOWS["within an hour"].parameters).rows]
    index = lines[lines.index("PrimaryKey", lines.index("ReadFromMergeTree (tailspan.stage_minutes)")) :]
    assert index[2] == "toStartOfHour(minute)"
    read, held = next(line.removeprefix("Granules: ").split("/") for line in index if line.startswith("Granules"))
    assert int(read) < int(held) / 2


@pytest.mark.parametrize("known", ["hour >= toDateTime(0)", f"hour >= toDateTime({MIDNIGHT_NS // 1_000_000_000})"])
def test_what_the_hours_lack_is_counted(client: Client, store: RunningCollector, known: str) -> None:
    """Requests of the hours that the window touches, and those of hours that the rollup by the hour does not know."""
    window = WINDOWS["off the hour at both ends"]
    query = catalog.load("coverage")
    sql = query.sql.replace("from tailspan.stage_hours", f"from (select * from tailspan.stage_hours where {known})")
    (row,) = client.execute(replace(query, sql=sql), window.parameters).records()
    begin, end = (ns // HOUR_NS * 3600 for ns in (window.since_ns, window.until_ns + HOUR_NS - 1))
    ((kept, missing),) = store.query(
        f"select count(), countIf(not ({known})) from (select toStartOfHour(start) as hour from tailspan.requests "
        f"where start >= toDateTime({begin}) and start < toDateTime({end}))"
    )
    assert (row["kept_count"], row["missing_count"]) == (kept, missing)
