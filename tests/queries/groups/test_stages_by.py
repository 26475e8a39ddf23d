"""Stages by group and over time against NumPy over the very same requests."""

import re
import time
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from tailspan import attributes
from tailspan.errors import UserError
from tailspan_queries import catalog
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.grouping import Grouping, parse_grouping
from tailspan_queries.records import EXACT, QUANTILES, REQUEST, ROLLUP, STAGE_ORDER
from tailspan_queries.stages_by import GroupRow, stages_by_report
from tailspan_queries.times import NS_PER_SECOND, Window, parse_window
from tests.queries import engine_traffic
from tests.queries.groups import grouped_traffic
from tests.queries.groups.grouped_traffic import BEGIN_NS, DAY_NS, HOUR_NS, KEYS, MIDNIGHT_NS, Grouped
from tests.queries.sample_parts import part_of

NAMES = {600: "10m", 3600: "1h", 86_400: "1d"}


def values_of(items: Iterable[Grouped], stage: str) -> np.ndarray:
    """Return the wall times of a stage, each as often as its weight says."""
    found: list[int] = []
    for item in items:
        if stage in (REQUEST, attributes.UNATTRIBUTED):
            times = [item.request.e2e_ns if stage == REQUEST else item.request.gap_ns]
        else:
            times = [part.wall_ns for part in item.request.stages if part.name == stage]
        found += times * item.weight
    return np.array(found)


def busy_and_gpu(items: Iterable[Grouped], stage: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the busy and the measured GPU times of a stage, each as often as its weight says."""
    parts = [(part, item.weight) for item in items for part in item.request.stages if part.name == stage]
    busy = [part.busy_ns for part, weight in parts for _ in range(weight)]
    gpu = [part.gpu_ns for part, weight in parts for _ in range(weight) if part.gpu_ns is not None]
    return np.array(busy), np.array(gpu)


def check_exact(row: GroupRow, items: list[Grouped], e2e_sum: float) -> None:
    """Compare every number of a row with NumPy's."""
    times = {"wall": values_of(items, row.stage)}
    if row.stage not in (REQUEST, attributes.UNATTRIBUTED):
        times["busy"], times["gpu"] = busy_and_gpu(items, row.stage)
    assert row.count == len(times["wall"])
    assert row.share_ratio == pytest.approx(times["wall"].sum() / e2e_sum)
    for kind, values in times.items():
        found = getattr(row, kind)
        if not values.any():
            assert found is None
            continue
        assert (found.count, found.sum_ns, found.max_ns) == (len(values), values.sum(), values.max())
        for name, quantile in QUANTILES.items():
            assert getattr(found, f"{name}_ns") == pytest.approx(np.percentile(values, quantile * 100), rel=1e-9)


def split(items: Iterable[Grouped], by: Callable[[Grouped], str]) -> dict[str, list[Grouped]]:
    """Divide requests by a key."""
    found: dict[str, list[Grouped]] = {}
    for item in items:
        found.setdefault(by(item), []).append(item)
    return found


def within(items: Iterable[Grouped], window: Window) -> list[Grouped]:
    """Return the requests that began within a window."""
    return [item for item in items if window.since_ns <= item.request.start_ns < window.until_ns]


@pytest.mark.parametrize("by", KEYS)
def test_every_dimension_is_that_of_numpy(client: Client, grouped: list[Grouped], days: Window, by: str) -> None:
    """For each group, every count, share, percentile of wall, busy and GPU time equals NumPy's, weights included."""
    report = stages_by_report(client, days, grouping=parse_grouping(by, "", days))
    expected = split(grouped, KEYS[by])
    assert report.method is EXACT
    assert {row.key for row in report.rows} == set(expected)
    assert report.group_count == len(expected)
    assert report.requests == sum(item.weight for item in grouped)
    for row in report.rows:
        items = expected[row.key]
        check_exact(row, items, values_of(items, REQUEST).sum())
        if row.stage == REQUEST:
            assert row.kept_count == len(items)
            assert row.error_count == sum(item.weight for item in items if item.request.failed)


@pytest.mark.parametrize("filters", [ALL, Filters(model="small", instance="worker-1")], ids=str)
@pytest.mark.parametrize("step", NAMES)
def test_buckets_of_time_are_those_of_numpy(
    client: Client, grouped: list[Grouped], filters: Filters, step: int
) -> None:
    """Each bucket starts at a multiple of its length in UTC and holds the requests that began in it; ends are cut."""
    window = Window(BEGIN_NS + 20 * HOUR_NS + 1, BEGIN_NS + 30 * HOUR_NS)
    report = stages_by_report(client, window, filters, parse_grouping("", NAMES[step], window))
    items = [
        item
        for item in within(grouped, window)
        if filters.model in ("", item.request.model) and filters.instance in ("", item.request.instance)
    ]
    expected = split(items, lambda item: str(item.request.start_ns // NS_PER_SECOND // step * step * NS_PER_SECOND))
    assert [row.bucket_ns for row in report.of_stage(REQUEST)] == sorted(map(int, expected))
    for row in report.rows:
        bucket = expected[str(row.bucket_ns)]
        check_exact(row, bucket, values_of(bucket, REQUEST).sum())


def test_a_request_before_midnight_stays_in_its_day(client: Client, days: Window) -> None:
    """A request that began a nanosecond before midnight counts in that day with stages that began after it."""
    edge = Window(MIDNIGHT_NS - 1, MIDNIGHT_NS + 1)
    report = stages_by_report(client, edge, grouping=parse_grouping("", "1d", edge))
    assert [row.bucket_ns for row in report.of_stage(REQUEST)] == [MIDNIGHT_NS - DAY_NS, MIDNIGHT_NS]
    assert [row.count for row in report.of_stage("decode")] == [1, report.of_stage(REQUEST)[1].count]


def test_a_day_on_which_clocks_change_is_in_utc(
    client: Client, grouped: list[Grouped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 25 hours of a day in Berlin are 25 buckets in UTC, whatever the time zone of the reader."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        window = parse_window("2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00")
        hours = stages_by_report(client, window, grouping=parse_grouping("", "1h", window))
        both = stages_by_report(client, window, grouping=parse_grouping("", "1d", window))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert window.until_ns - window.since_ns == 25 * HOUR_NS
    buckets = [row.bucket_ns for row in hours.of_stage(REQUEST)]
    assert buckets == [MIDNIGHT_NS - 2 * HOUR_NS + hour * HOUR_NS for hour in range(25)]
    assert [row.bucket_ns for row in both.of_stage(REQUEST)] == [MIDNIGHT_NS - DAY_NS, MIDNIGHT_NS]
    assert hours.requests == both.requests == sum(item.weight for item in within(grouped, window))


@pytest.mark.parametrize("by", ["", "model", "service", "instance"])
def test_the_rollup_is_within_the_stated_error(client: Client, grouped: list[Grouped], days: Window, by: str) -> None:
    """From the rollup, every percentile of every group is within 0.8 % of NumPy's at its rank; the rest is exact."""
    report = stages_by_report(client, days, grouping=parse_grouping(by, "", days), method=ROLLUP)
    expected = split(grouped, KEYS[by])
    error = report.method.relative_error
    assert error == 0.008
    assert {row.key for row in report.rows} == set(expected)
    for row in report.rows:
        values = values_of(expected[row.key], row.stage)
        assert (row.wall.count, row.wall.sum_ns, row.wall.max_ns) == (len(values), values.sum(), values.max())
        for name, quantile in QUANTILES.items():
            found = np.quantile(values, quantile, method="inverted_cdf")
            assert getattr(row.wall, f"{name}_ns") == pytest.approx(found, rel=error), (row.key, row.stage, name)


@pytest.mark.parametrize("step", NAMES)
def test_rollup_and_exact_agree_over_time(client: Client, grouped: list[Grouped], days: Window, step: int) -> None:
    """Bucket by bucket and group by group, counts are those of the raw spans and percentiles near NumPy's."""
    grouping = parse_grouping("model", NAMES[step], days)
    rolled = stages_by_report(client, days, grouping=grouping, method=ROLLUP).of_stage(REQUEST)
    exact = stages_by_report(client, days, grouping=grouping, method=EXACT).of_stage(REQUEST)
    expected = split(
        grouped,
        lambda item: f"{item.request.start_ns // NS_PER_SECOND // step * step * NS_PER_SECOND} {item.request.model}",
    )
    assert {f"{row.bucket_ns} {row.key}" for row in rolled} == set(expected)
    for row, other in zip(rolled, exact, strict=True):
        assert (row.bucket_ns, row.key, row.count, row.error_count, row.wall.max_ns) == (
            other.bucket_ns,
            other.key,
            other.count,
            other.error_count,
            other.wall.max_ns,
        )
        values = values_of(expected[f"{row.bucket_ns} {row.key}"], REQUEST)
        for name, quantile in QUANTILES.items():
            found = np.quantile(values, quantile, method="inverted_cdf")
            assert getattr(row.wall, f"{name}_ns") == pytest.approx(found, rel=ROLLUP.relative_error)


def test_batch_is_the_mean_size_of_the_steps(
    client: Client, engines: list[engine_traffic.Engine], engine_days: Window
) -> None:
    """A request's batch size is the mean number of requests in its engine's stored steps, walked one by one."""
    expected: dict[str, list[int]] = {}
    for engine in engines:
        steps = {step.number: step for step in engine.stored}
        for request in engine_traffic.requests_of(engine):
            numbers = [
                int(part.extra[key])
                for part in request.stages
                for key in (attributes.STEP_FIRST, attributes.STEP_LAST)
                if key in part.extra
            ]
            own = [steps[number] for number in range(min(numbers), max(numbers) + 1) if number in steps]
            sizes = [step.decode_tokens + (step.prefill_tokens > 0) for step in own]
            key = ""
            if own:
                key = grouped_traffic.bucket_of(
                    int(np.floor(np.average(sizes, weights=[s.weight for s in own]) + 0.5)), 2
                )
            expected.setdefault(key, []).append(request.e2e_ns)
    report = stages_by_report(client, engine_days, grouping=Grouping("batch"), stage="queue")
    rows = report.of_stage(REQUEST)
    assert {row.key: row.count for row in rows} == {key: len(found) for key, found in expected.items()}
    assert len(rows) > 3
    for row in rows:
        assert row.wall.p50_ns == pytest.approx(np.percentile(expected[row.key], 50))
    sizes_in_order = [int(row.key) for row in rows if row.key]
    assert sizes_in_order == sorted(sizes_in_order)


@pytest.mark.parametrize(("scan_limit", "parts", "table"), [(400_000, 955, "spans"), (0, 256, "spans_sample")])
def test_a_sample_is_read_where_there_are_more(
    client: Client,
    grouped: list[Grouped],
    days: Window,
    monkeypatch: pytest.MonkeyPatch,
    scan_limit: int,
    parts: int,
    table: str,
) -> None:
    """Beyond the limit, percentiles are NumPy's over the traces that were read, and counts stand for all."""
    monkeypatch.setattr("tailspan_queries.stages_by.READ_LIMIT", 700)
    monkeypatch.setattr("tailspan_queries.stages_by.EXACT_LIMIT", 700)
    monkeypatch.setattr("tailspan_queries.sampling.SCAN_LIMIT", scan_limit)
    monkeypatch.setattr("tailspan_queries.sampling.FEW", 0)
    report = stages_by_report(client, days, grouping=parse_grouping("prompt", "", days))
    assert report.sample.parameters == {"parts": parts, "spans": table}
    assert f"over {100 * parts / 4096:.2g} % of the traces" in report.method.statement
    read = split((item for item in grouped if part_of(item.request.trace_id) < parts), KEYS["prompt"])
    share = sum(map(len, read.values())) / len(grouped)
    assert share == pytest.approx(parts / 4096, rel=0.3)
    for row in report.rows:
        values = values_of(read[row.key], row.stage)
        assert row.count == round(len(values) * 4096 / parts)
        assert row.wall.p99_ns == pytest.approx(np.percentile(values, 99))
    assert stages_by_report(client, days, grouping=Grouping("prompt"), method=EXACT).sample.whole
    assert stages_by_report(client, days, grouping=Grouping("model")).method is ROLLUP


def test_an_attribute_of_the_resource_is_a_dimension_too(client: Client, grouped: list[Grouped], days: Window) -> None:
    """A key that the request span does not have is looked for in its resource; one that neither has is one group."""
    rows = stages_by_report(client, days, grouping=Grouping("attr", attributes.SERVICE_INSTANCE)).of_stage(REQUEST)
    expected = split(grouped, KEYS["instance"])
    assert {row.key: row.kept_count for row in rows} == {key: len(items) for key, items in expected.items()}
    (row,) = stages_by_report(client, days, grouping=Grouping("attr", "no.such.key")).of_stage(REQUEST)
    assert (row.key, row.kept_count) == ("", len(grouped))


def test_only_the_largest_groups_are_listed(client: Client, grouped: list[Grouped], days: Window) -> None:
    """With a limit, the groups with the most requests are listed over all buckets, and the number of all is known."""
    sizes = {key: sum(item.weight for item in items) for key, items in split(grouped, KEYS["prompt"]).items()}
    largest = sorted(sizes, key=lambda key: (-sizes[key], key))[:2]
    report = stages_by_report(client, days, grouping=parse_grouping("prompt", "1d", days, limit=2))
    assert {row.key for row in report.rows} == set(largest)
    assert report.group_count == len(sizes) > 2
    assert sum(row.count for row in report.of_stage(REQUEST)) == sum(sizes[key] for key in largest)


def test_requests_that_only_an_engine_traced_are_there(client: Client) -> None:
    """What an engine's own tracing reported is grouped by what it says, and is of unknown priority."""
    window = Window(grouped_traffic.TRACED_NS, grouped_traffic.TRACED_NS + DAY_NS)
    by_model = stages_by_report(client, window, grouping=Grouping("model")).of_stage("queue")
    assert [(row.key, row.count, row.wall.sum_ns) for row in by_model] == [("llama", 2, 2_000_000_000)]
    by_prompt = stages_by_report(client, window, grouping=Grouping("prompt")).of_stage(REQUEST)
    assert [(row.key, row.wall.max_ns) for row in by_prompt] == [("1", 2_000_000_000), ("128", 3_000_000_000)]
    assert [row.key for row in stages_by_report(client, window, grouping=Grouping("priority")).rows][:1] == [""]


@pytest.mark.parametrize("method", [EXACT, ROLLUP], ids=lambda method: method.name)
def test_an_empty_window_and_one_request(client: Client, grouped: list[Grouped], days: Window, method: object) -> None:
    """Nothing gives no rows; a single request is every percentile of its group."""
    chosen = EXACT if method is EXACT else ROLLUP
    empty = Window(BEGIN_NS - DAY_NS, BEGIN_NS - HOUR_NS)
    report = stages_by_report(client, empty, grouping=parse_grouping("model", "1h", empty), method=chosen)
    assert (report.rows, report.requests, report.group_count) == ((), 0, 0)
    first = min(grouped, key=lambda item: item.request.start_ns)
    alone = Window(first.request.start_ns, first.request.start_ns + 1)
    (row,) = stages_by_report(client, alone, grouping=Grouping("model"), method=EXACT).of_stage(REQUEST)
    assert {row.wall.p50_ns, row.wall.p999_ns, float(row.wall.max_ns)} == {float(first.request.e2e_ns)}


def test_the_rollup_is_not_asked_for_what_it_does_not_hold(client: Client, days: Window) -> None:
    """A dimension or a step that the rollup does not have is an error that says what to leave out."""
    for by, over in (("prompt", ""), ("model", "10s")):
        short = Window(days.since_ns, days.since_ns + HOUR_NS)
        with pytest.raises(UserError, match="the rollup holds model, service and instance by whole minutes"):
            stages_by_report(client, short, grouping=parse_grouping(by, over, short), method=ROLLUP)


@pytest.mark.parametrize(
    ("by", "over", "message"),
    [
        ("modell", "", "--by 'modell' is no dimension. Use model, service"),
        ("attr:", "", "--by 'attr:' is no dimension"),
        ("", "7m", "--over '7m' is no step that divides a day. Use a duration such as 1m"),
        ("", "2d", "--over '2d' is no step"),
        ("", "0m", "--over '0m' is no step"),
        ("", "1s", "--over 1s makes 259,200 lines of this window, more than 10,080. Use a longer step"),
    ],
)
def test_what_does_not_read_is_one_clear_line(days: Window, by: str, over: str, message: str) -> None:
    """A mistake in either option says what is wrong and what to do."""
    with pytest.raises(UserError) as caught:
        parse_grouping(by, over, days)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["stages_by", "stages_by_rollup"])
def test_the_order_of_stages_is_that_of_the_attributes(name: str) -> None:
    """The list in the SQL is the list of stages, so that a new stage cannot be forgotten."""
    text = catalog.load(name).sql
    assert tuple(re.findall(r"'(\w+)'", text[text.rindex("transform(") :])) == STAGE_ORDER


def test_all_queries_spell_groups_alike() -> None:
    """The text that makes a request's group is the same in every query that makes groups: they cannot drift apart."""

    def between(name: str, begin: str, end: str) -> str:
        text = catalog.load(name).sql
        return text[text.index(begin) : text.index(end, text.index(begin))]

    for begin, end in (
        ("-- Sums over the steps", "traced as ("),
        ("        anyIf(\n            concat(", "    from tailspan.{spans"),
        ("keyed as (", "-- Requests that only"),
        ("        concat(\n            if({by:String} = 'model'", "        start as request_start"),
    ):
        assert between("stages_by", begin, end) == between("latency", begin, end) == between("goodput", begin, end)
        assert len(between("stages_by", begin, end)) > 200
