"""Who waits: the query against NumPy, a starved class, and nobody."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import stats

from tailspan import attributes
from tailspan.cli import main
from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.fairness import WaitClass, fairness_report
from tailspan_queries.fairness_view import cautions, diagnose, fairness_csv, fairness_json, warnings
from tailspan_queries.sampling import STORED
from tailspan_queries.times import Window
from tests.queries.contribution import traffic
from tests.queries.contribution.conftest import EVEN, PLANTED, STARVED, WEIGHTED
from tests.queries.sample_parts import part_of

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
    for name, period in (("before", early), ("after", ~early)):
        inside = np.repeat(wait[period], weights[period])
        assert getattr(found, f"{name}_requests") == period.sum()
        assert getattr(found, f"{name}_p50_ns") == pytest.approx(np.percentile(inside, 50))
        assert getattr(found, f"{name}_p99_ns") == pytest.approx(np.percentile(inside, 99))
        block = np.arange(period.sum()) * 8 // period.sum()
        p99s = [np.percentile(np.repeat(wait[period][mine], weights[period][mine]), 99) for mine in of_blocks(block)]
        assert getattr(found, f"{name}_blocks_ns") == pytest.approx(tuple(p99s))


def of_blocks(block: np.ndarray) -> list[np.ndarray]:
    """Return which requests each of the blocks with requests holds."""
    return [block == number for number in np.unique(block)]


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


def test_the_chance_of_a_rise_is_that_of_scipy() -> None:
    """Welch's test of the logarithms of the blocks' P99s, one-sided, is SciPy's; below a microsecond all are alike."""
    rng = np.random.default_rng(3)
    for rise in (0.5, 1.0, 1.5, 4.0):
        before, after = rng.lognormal(16, 0.6, 8), rise * rng.lognormal(16, 0.6, 8)
        found = rise_p_value(before, after)
        expected = stats.ttest_ind(np.log(after), np.log(before), equal_var=False, alternative="greater").pvalue
        assert found == pytest.approx(expected)
    assert rise_p_value(np.zeros(8), np.full(8, 900.0)) == 1
    assert rise_p_value(np.zeros(8), np.full(8, 2000.0)) == 0


def rise_p_value(before: np.ndarray, after: np.ndarray) -> float:
    """Return the chance that a class with these P99s, in ns, has."""
    blocks = {"before_blocks_ns": tuple(before.tolist()), "after_blocks_ns": tuple(after.tolist())}
    return WaitClass(**{field.name: 0 for field in fields(WaitClass)} | blocks).rise_p_value  # type: ignore[arg-type]


def test_false_alarms_of_the_rise(even: Items) -> None:
    """In 200 windows of the same waits in another order, at most one in twenty has a class that rose."""
    wait = waits(even)
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        classes = rng.integers(0, 3, len(wait))
        shuffled = rng.permutation(wait)
        risen = False
        for one in range(3):
            before, after = np.array_split(shuffled[classes == one], 2)
            p99s = [[np.percentile(block, 99) for block in np.array_split(half, 8)] for half in (before, after)]
            rise = np.percentile(after, 99) / np.percentile(before, 99) - 1
            risen |= rise >= 0.1 and rise_p_value(np.array(p99s[0]), np.array(p99s[1])) < 0.05 / 3
        alarms += risen
    print(f"{alarms} of 200 windows without a change have a class that rose")
    assert alarms <= 10


def test_of_many_requests_a_part_is_read(client: Client, starved: Items, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the numbers are NumPy's over the traces read, and counts and longest waits those of all."""
    monkeypatch.setattr("tailspan_queries.fairness.READ_LIMIT", 2000)
    report = fairness_report(client, traffic.window(STARVED))
    read = [item for item in starved if part_of(item.request.trace_id) < report.sample.parts]
    assert report.sample.parts == 4096 * 2000 // 3000
    assert report.everyone is not None
    assert report.everyone.requests == round(len(read) * 4096 / report.sample.parts)
    whole = replace(report.everyone, requests=len(read))
    check(whole, read, read, traffic.window(STARVED).since_ns + MIDDLE)
    assert report.longest[0].wait_ns == waits(starved).max()
    assert [found.key for found in report.starved] == ["9"]
    assert (
        cautions(report)[-1]
        == "read 67 % of the traces (--exact reads all); counts are scaled up, longest waits are of all"
    )


def test_everything_is_read_where_it_is_asked_for(
    client: Client, starved: Items, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --exact the limit is none, and nothing is said of a sample."""
    monkeypatch.setattr("tailspan_queries.fairness.READ_LIMIT", 2000)
    hour = traffic.window(STARVED).as_json()
    question = ["fairness", "--since", hour["since"], "--until", hour["until"], "--url", client.url]
    found = []
    for more in ([], ["--exact"]):
        assert main([*question, "--format", "json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["read_ratio"] == pytest.approx(2 / 3, rel=0.001)
    assert (found[1]["read_ratio"], found[1]["everyone"]["kept_requests"]) == (1, len(starved))
    assert [bool([text for text in one["cautions"] if "of the traces" in text]) for one in found] == [True, False]


def test_both_periods_are_read_in_the_same_parts(
    client: Client, even: Items, starved: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a baseline the limit is for both windows together, and the stored sample serves where both are in it."""
    monkeypatch.setattr("tailspan_queries.fairness.READ_LIMIT", 3000)
    monkeypatch.setattr("tailspan_queries.sampling.SCAN_LIMIT", 3000)
    monkeypatch.setattr("tailspan_queries.sampling.FEW", 0)
    hours = sorted((EVEN, STARVED))
    items = {EVEN: even, STARVED: starved}
    report = fairness_report(client, traffic.window(hours[1]), baseline=traffic.window(hours[0]))
    assert (report.sample.parts, report.sample.stored) == (STORED, True)
    assert report.everyone is not None
    read = [sum(part_of(item.request.trace_id) < STORED for item in items[hour]) for hour in hours]
    assert [report.everyone.before_requests, report.everyone.after_requests] == read


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
