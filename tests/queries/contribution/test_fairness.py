"""Who waits: the query against NumPy, a starved class, and nobody."""

from collections.abc import Sequence

import numpy as np
import pytest

from tailspan import attributes
from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.fairness import WaitClass, fairness_report
from tailspan_queries.fairness_view import diagnose, fairness_csv, fairness_json, warnings
from tailspan_queries.times import Window
from tests.queries.contribution import traffic
from tests.queries.contribution.conftest import EVEN, PLANTED, STARVED, WEIGHTED

Items = list[traffic.Labelled]
MIDDLE = traffic.HOUR_NS // 2


def waits(items: Sequence[traffic.Labelled]) -> np.ndarray:
    """Return the wait of each request."""
    return np.array([item.request.stage_ns("queue") for item in items], dtype=float)


def priority(item: traffic.Labelled) -> str:
    """Return the priority of a request as text."""
    return str(item.keys.get(attributes.PRIORITY, 0))


def check(found: WaitClass, items: Items, whole: Items, middle_ns: int) -> None:
    """Compare one class with NumPy over its requests; `whole` are those of the window, of all classes."""
    wait = waits(items)
    weights = np.array([item.request.weight for item in items]).astype(int)
    repeated = np.repeat(wait, weights)
    median = np.median(np.repeat(waits(whole), [int(item.request.weight) for item in whole]))
    assert (found.requests, found.kept_requests) == (weights.sum(), len(items))
    assert found.wait_mean_ns == pytest.approx(repeated.mean())
    for name, quantile in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(found, f"wait_{name}_ns") == pytest.approx(np.percentile(repeated, quantile))
    assert found.wait_max_ns == wait.max()
    assert found.long_wait_ns == pytest.approx(10 * median)
    assert found.long_ratio == pytest.approx((repeated > 10 * median).mean())
    assert found.longest_trace_id == items[int(wait.argmax())].request.trace_id.hex()
    early = np.array([item.request.start_ns < middle_ns for item in items])
    most = max(0.01 * len(wait), min(0.1 * len(wait), 32))
    beyond = (-wait).argsort().argsort() < int(most)
    for name, period in (("before", early), ("after", ~early)):
        inside = np.repeat(wait[period], weights[period])
        assert getattr(found, f"{name}_requests") == period.sum()
        assert getattr(found, f"{name}_p50_ns") == pytest.approx(np.percentile(inside, 50))
        assert getattr(found, f"{name}_p99_ns") == pytest.approx(np.percentile(inside, 99))
        block = np.arange(period.sum()) * 8 // period.sum()
        over = np.bincount(block, (weights * beyond)[period], 8) / np.bincount(block, weights[period], 8)
        assert sorted(getattr(found, f"{name}_beyond")) == pytest.approx(sorted(over))


@pytest.mark.parametrize(("name", "hour"), [("starved", STARVED), ("weighted", WEIGHTED)])
def test_waits_are_those_of_numpy(client: Client, request: pytest.FixtureRequest, name: str, hour: int) -> None:
    """Percentiles, long waits and both halves equal NumPy's, of everyone and of each priority, weighted or not."""
    items: Items = request.getfixturevalue(name)
    report = fairness_report(client, traffic.window(hour))
    middle_ns = traffic.window(hour).since_ns + MIDDLE
    assert report.everyone is not None
    check(report.everyone, items, items, middle_ns)
    assert {found.key for found in report.classes} == {priority(item) for item in items}
    for found in report.classes:
        check(found, [item for item in items if priority(item) == found.key], items, middle_ns)


def test_a_starved_class_is_named_and_its_rise_is_told_loudly(client: Client, starved: Items) -> None:
    """Priority 9 waits 25 times as long from the middle on, others less: it starves, its P99 rose, the median fell."""
    report = fairness_report(client, traffic.window(STARVED))
    assert [found.key for found in report.starved] == ["9"]
    assert [found.key for found in report.risen] == ["9"]
    assert report.median_fell
    assert diagnose(report).startswith("priority 9 starves: ")
    (line,) = warnings(report)
    assert line.startswith("priority 9: p99 of the queue rose from ")
    assert "WHILE THE MEDIAN OF EVERYONE FELL" in line
    longest = sorted(starved, key=lambda item: -item.request.stage_ns("queue"))[:5]
    assert [found.trace_id for found in report.longest] == [item.request.trace_id.hex() for item in longest]
    assert {found.key for found in report.longest} == {"9"}
    assert [found.e2e_ns for found in report.longest] == [item.request.e2e_ns for item in longest]


def test_against_a_baseline_window(client: Client, even: Items, starved: Items) -> None:
    """With a baseline the earlier period is that window, and the whole window is the later one."""
    second = Window(traffic.window(STARVED).since_ns + MIDDLE, traffic.window(STARVED).until_ns)
    first = Window(traffic.window(STARVED).since_ns, second.since_ns)
    report = fairness_report(client, second, baseline=first)
    assert not report.halves
    assert [found.key for found in report.risen] == ["9"]
    nine = next(found for found in report.classes if found.key == "9")
    items = [item for item in starved if priority(item) == "9"]
    later = [item for item in items if item.request.start_ns >= second.since_ns]
    assert (nine.requests, nine.after_requests) == (len(later), len(later))
    assert nine.before_requests == len(items) - len(later)
    assert nine.wait_p99_ns == nine.after_p99_ns == pytest.approx(np.percentile(waits(later), 99))
    with pytest.raises(UserError, match="the baseline overlaps the window"):
        fairness_report(client, second, baseline=traffic.window(STARVED))


@pytest.mark.parametrize("by", ["priority", "model", "app.tenant", "instance"])
@pytest.mark.parametrize("hour", [EVEN, PLANTED])
def test_nobody_starves_where_all_wait_alike(client: Client, hour: int, by: str) -> None:
    """Without a planted class nobody starves, no class has risen, whatever the classes are."""
    report = fairness_report(client, traffic.window(hour), by=by)
    assert (report.starved, report.risen, warnings(report)) == ((), (), [])
    assert diagnose(report).startswith("nobody starves: ")


def test_false_alarms_of_the_rise(client: Client, even: Items) -> None:
    """In 200 windows of the same waits in another order, at most one in twenty has a class that rose."""
    from tailspan_queries import significance

    wait = waits(even)
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        classes = rng.integers(0, 3, len(wait))
        risen = False
        shuffled = rng.permutation(wait)
        for one in range(3):
            mine = shuffled[classes == one]
            beyond = ((-mine).argsort().argsort() < min(0.1 * len(mine), 32)).astype(float)
            halves = np.array_split(beyond, 2)
            before, after = ([block.mean() for block in np.array_split(half, 8)] for half in halves)
            rise = np.percentile(np.array_split(mine, 2)[1], 99) / np.percentile(np.array_split(mine, 2)[0], 99) - 1
            risen |= rise >= 0.1 and significance.welch_greater(before, after) < 0.05 / 3
        alarms += risen
    print(f"{alarms} of 200 windows without a change have a class that rose")
    assert alarms <= 10


def test_of_many_requests_a_part_is_read(client: Client, starved: Items, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit one request in two is read, and the longest waits are still those of all."""
    monkeypatch.setattr("tailspan_queries.fairness.READ_LIMIT", 2000)
    report = fairness_report(client, traffic.window(STARVED))
    below = [item for item in starved if item.request.trace_id[0] < 0x80]
    assert report.everyone is not None
    assert (report.sample, report.everyone.kept_requests, report.everyone.requests) == (2, len(below), 2 * len(below))
    assert report.longest[0].wait_ns == waits(starved).max()
    assert [found.key for found in report.starved] == ["9"]


def test_an_attribute_that_nobody_has(client: Client, even: Items) -> None:
    """One class without a name, and a line that says so; nothing is compared with itself."""
    report = fairness_report(client, traffic.window(EVEN), by="no.such")
    assert [found.key for found in report.classes] == [""]
    assert "no request has an attribute no.such" in fairness_json(report)["cautions"]


def test_one_request_and_none(client: Client, even: Items) -> None:
    """A single request has one period and no change; without requests there is nothing, and no error."""
    start = even[0].request.start_ns
    report = fairness_report(client, Window(start, start + 1))
    assert report.everyone is not None
    assert (report.everyone.requests, report.everyone.p99_change_ratio, report.risen) == (1, None, ())
    assert report.everyone.rise_p_value == 1
    empty = fairness_report(client, traffic.window(40))
    assert (empty.everyone, empty.classes, empty.longest, diagnose(empty)) == (None, (), (), "")
    assert fairness_csv(empty)[1] == []
    assert fairness_json(empty)["everyone"] is None
