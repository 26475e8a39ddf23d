"""`tailspan regress`: what it finds, what it leaves alone, and how it says so."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tailspan import attributes
from tailspan.cli import main
from tailspan.errors import UserError
from tailspan_queries.client import Client, connect
from tailspan_queries.compare import compare
from tailspan_queries.compare_records import REQUEST, Part, Sample
from tailspan_queries.filters import ALL
from tailspan_queries.regress import DAY_NS, began, judge, previous_days
from tailspan_queries.regress import regress as ask
from tailspan_queries.stats_change import change_block, holm
from tailspan_queries.times import Window, iso
from tests.queries import compare_traffic as made
from tests.queries.compare_traffic import HOUR_NS, Truth
from tests.queries.printed import same_as_snapshot
from tests.queries.traffic import BEGIN_NS
from tests.support.collector import RunningCollector, wait_until

SERVICE = {attributes.SERVICE_NAME: "chat", attributes.SERVICE_INSTANCE: "worker-0"}


def sample(truth: Truth, seed: int, hour: int = 0) -> Sample:
    """Return the requests of an hour."""
    begin_ns = BEGIN_NS + hour * HOUR_NS
    return made.sample(made.make(truth, begin_ns, seed), begin_ns)


def test_holm_is_that_of_the_definition() -> None:
    """The adjusted p-values, in the order given, are those that a step-down by hand gives."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_holm_rejects_what_bonferroni_rejects_and_keeps_its_level() -> None:
    """Of true hypotheses any is rejected in some 5 % of cases, and no p-value grows more than with Bonferroni."""
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(2000):
        p_values = random.uniform(size=8)
        adjusted = np.array(holm(p_values.tolist()))
        assert (adjusted <= np.minimum(p_values * 8, 1) + 1e-12).all()
        wrong += bool((adjusted < 0.05).any())
    assert stats.binomtest(wrong, 2000, 0.05).pvalue > 0.01


@pytest.mark.parametrize("change", [0, 6, 14, 25])
def test_the_change_point_is_the_block_where_the_rate_rose(change: int) -> None:
    """From the planted block on five times as many are slow, and that block or a neighbour is found."""
    random = np.random.default_rng(change)
    total = np.full(30, 200.0)
    rates = np.where(np.arange(30) < change, 0.01, 0.05)
    assert abs(change_block(random.binomial(200, rates).astype(float), total, 0.01) - change) <= 1


def test_a_rate_that_did_not_rise_has_no_change_point() -> None:
    """Blocks without requests or without slow ones begin nowhere."""
    assert change_block(np.zeros(5), np.full(5, 100.0), 0.01) == 0
    assert change_block(np.zeros(3), np.zeros(3), 0.01) == 0
    assert change_block(np.zeros(0), np.zeros(0), 0.01) == 0


def test_a_stage_that_got_slower_is_named() -> None:
    """A decode that is 40 % slower regresses with the end-to-end time; the other stages do not."""
    judged = judge(compare(sample(Truth(3000), 1), sample(Truth(3000, factors={"decode": 1.4}), 2, 1)), ("p50", "p99"))
    assert {found.line.part for found in judged.regressed} == {"decode", REQUEST}
    assert all(found.since_ns is None for found in judged.regressed)
    ratios = [found.line.change_ratio or 0 for found in judged.regressed]
    assert ratios == sorted(ratios, reverse=True)


def test_a_stage_that_got_faster_is_no_alarm() -> None:
    """An improvement is marked as such and leaves the exit code alone."""
    judged = judge(compare(sample(Truth(3000), 3), sample(Truth(3000, factors={"decode": 0.6}), 4, 1)), ("p50", "p99"))
    assert judged.regressed == ()
    assert {found.line.part for found in judged.findings if found.improved} == {"decode", REQUEST}


@pytest.mark.parametrize("factor", [1.0, 1.06])
def test_what_moves_less_than_the_threshold_is_left_alone(factor: float) -> None:
    """A move of 6 % is sure, but below 10 % it is no regression."""
    judged = judge(compare(sample(Truth(4000), 5), sample(Truth(4000, factors={"decode": factor}), 6, 1)), ("p50",))
    assert judged.regressed == ()


@pytest.fixture(scope="module")
def busy_hours() -> list[tuple[Sample, Sample]]:
    """Ten pairs of hours with 40,000 decodes each."""
    return [(decodes(100 + seed), decodes(200 + seed, 1)) for seed in range(10)]


def decodes(seed: int, hour: int = 0) -> Sample:
    """Return the decodes of a busy hour."""
    found = sample(Truth(40_000), seed, hour)
    return replace(found, parts={"decode": found.parts["decode"]})


@pytest.mark.parametrize(("factor", "least", "most"), [(1.12, 8, 10), (1.08, 0, 2), (1.0, 0, 1)])
def test_a_p99_that_moved_by_12_percent_is_found_and_8_is_not(
    busy_hours: list[tuple[Sample, Sample]], factor: float, least: int, most: int
) -> None:
    """Of ten pairs of busy hours nearly all raise the alarm if decode moved beyond the threshold, else hardly any."""
    found = 0
    for before, after in busy_hours:
        decode = after.parts["decode"]
        longer = replace(after, parts={"decode": Part(decode.requests, decode.wall_ns * factor)})
        found += bool(judge(compare(before, longer)).regressed)
    assert least <= found <= most


def test_a_changed_mix_is_no_regression() -> None:
    """Longer outputs raise every decode percentile and no alarm."""
    judged = judge(compare(sample(Truth(4000), 7), sample(Truth(4000, output_median=230), 8, 1)), ("p50", "p99"))
    assert judged.regressed == ()


def test_the_begin_of_a_regression_is_found() -> None:
    """Decodes that are 80 % slower from two thirds of the hour on have that time as begin, to a block."""
    before, after = sample(Truth(4000), 9), sample(Truth(4000), 10, 1)
    decode = after.parts["decode"]
    walls = decode.wall_ns * np.where(after.blocks[decode.requests] >= 20, 1.8, 1.0)
    report = compare(before, replace(after, parts={**after.parts, "decode": Part(decode.requests, walls)}))
    found = next(item for item in judge(report).regressed if item.line.part == "decode")
    assert found.since_ns == pytest.approx(BEGIN_NS + HOUR_NS + HOUR_NS * 2 // 3, abs=after.block_ns)
    mean = report.line("decode", "mean")
    assert mean is not None
    assert began(report, mean) == pytest.approx(BEGIN_NS + HOUR_NS + HOUR_NS * 2 // 3, abs=2 * after.block_ns)


def test_too_few_requests_regress_nothing() -> None:
    """Without an interval there is no alarm however large the change."""
    judged = judge(compare(sample(Truth(30), 11), sample(Truth(30, factors={"decode": 9}), 12, 1)))
    assert judged.regressed == ()
    assert all(found.p_holm is None for found in judged.findings)


NOW_NS = BEGIN_NS + 5 * DAY_NS
SLOW_HOUR = Window(NOW_NS, NOW_NS + HOUR_NS)
QUIET_HOUR = Window(NOW_NS + 12 * HOUR_NS, NOW_NS + 13 * HOUR_NS)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str]]:
    """Three days with requests at the same hour, of which the last has a decode that is slower from its middle on."""
    messages, count = [], 0
    for number, day in enumerate((-3, -1, 0)):
        begin_ns = NOW_NS + day * DAY_NS
        items = made.make(Truth(count=1300), begin_ns, 20 + number)
        if day == 0:
            late = items.start_ns >= begin_ns + HOUR_NS // 2
            decode = np.where(late, items.wall_ns["decode"] * 2, items.wall_ns["decode"])
            items = replace(items, wall_ns={**items.wall_ns, "decode": decode})
        spans = list(made.spans(items, 30 + number))
        count += len(spans)
        messages.append(made.message(spans, SERVICE))
    with RunningCollector(tmp_path_factory.mktemp("regress") / "data", "--batch-seconds", "0.2") as collector:
        collector.export(*messages)
        assert collector.wait_rows(count) == count
        rolled_up = "select sum(span_count) from tailspan.stage_minutes where stage = 'request'"
        assert wait_until(lambda: collector.query(rolled_up)[0][0], lambda found: found >= 3900) == 3900
        client = connect(collector.url)
        yield client, collector.url
        client.close()


def between(window: Window) -> tuple[str, ...]:
    """Return a window as options."""
    return "--since", iso(window.since_ns), "--until", iso(window.until_ns)


def test_the_baseline_is_the_same_hours_of_days_that_have_requests(filled: tuple[Client, str]) -> None:
    """Days without requests are left out; a window of more than a day has no such baseline."""
    days = previous_days(filled[0], SLOW_HOUR, ALL)
    assert [(SLOW_HOUR.since_ns - day.since_ns) // DAY_NS for day in days] == [1, 3]
    report = ask(filled[0], SLOW_HOUR, days, ALL)
    assert (report.comparison.before.size, report.comparison.before.block_count) == (2600, 60)
    with pytest.raises(UserError, match="overlaps the day before"):
        previous_days(filled[0], Window(NOW_NS, NOW_NS + DAY_NS + 1), ALL)


def test_a_regression_is_named_with_its_begin_and_exit_code_1(
    filled: tuple[Client, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table for people is the reviewed one, within a hundred columns, and cron sees exit code 1."""
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["regress", *between(SLOW_HOUR), "--url", filled[1]]) == 1
    out = capsys.readouterr().out
    assert "decode p99 regressed by +" in out
    same_as_snapshot("regress.txt", out)
    assert max(map(len, out.splitlines())) <= 100


def test_json_and_csv_name_what_regressed(filled: tuple[Client, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Machines read the same findings, with the time since when, and get the same exit code."""
    question = ("regress", *between(SLOW_HOUR), "--statistic", "p50", "--statistic", "p99", "--url", filled[1])
    assert main([*question, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    found = {(item["part"], item["statistic"]): item for item in document["findings"]}
    assert len(found) == 2 * 8
    assert found["decode", "p50"]["regressed"]
    begin = iso(NOW_NS + HOUR_NS // 2)
    assert found["decode", "p50"]["since"] == begin
    assert not found["prefill", "p50"]["regressed"]
    assert main([*question, "--format", "csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert next(row["part"] for row in rows if row["regressed"] == "true") == document["findings"][0]["part"]


def test_a_sample_is_told_and_everything_read_where_it_is_asked_for(
    filled: tuple[Client, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which part of window and baseline was read stands under the table, and with --exact it is all."""
    question = ("regress", *between(SLOW_HOUR), "--requests", "1200", "--url", filled[1])
    main([*question])
    assert "% of the traces" in capsys.readouterr().out
    assert main([*question, "--exact"]) == 1
    assert "% of the traces" not in capsys.readouterr().out


def test_days_that_do_not_differ_exit_with_0(filled: tuple[Client, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A named baseline is held against instead of previous days, and like against like is no alarm."""
    day = Window(SLOW_HOUR.since_ns - DAY_NS, SLOW_HOUR.until_ns - DAY_NS)
    earlier = f"{iso(day.since_ns - 2 * DAY_NS)}..{iso(day.until_ns - 2 * DAY_NS)}"
    assert main(["regress", *between(day), "--baseline", earlier, "--url", filled[1]]) == 0
    assert "nothing regressed by more than 10 %" in capsys.readouterr().out


def test_nothing_to_hold_against_is_one_line(filled: tuple[Client, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a baseline nor a window without requests is an alarm."""
    assert main(["regress", *between(QUIET_HOUR), "--url", filled[1]]) == 0
    captured = capsys.readouterr()
    assert "no requests at these hours of the 7 previous days" in captured.err
    baseline = f"{iso(SLOW_HOUR.since_ns)}..{iso(SLOW_HOUR.until_ns)}"
    assert main(["regress", *between(QUIET_HOUR), "--baseline", baseline, "--url", filled[1]]) == 0
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)


def test_a_baseline_that_overlaps_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A baseline within the window is told before ClickHouse is asked."""
    assert main(["regress", "--baseline", "2h..30m"]) == 2
    assert "the baseline overlaps the window" in capsys.readouterr().err
