"""What is different about the slow ones: the query against NumPy, and planted truths."""

import json

import numpy as np
import pytest

from tailspan.cli import main
from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.different import DifferentReport, different_report, judge
from tailspan_queries.different import margin as margin_of
from tailspan_queries.different_overlap import overlaps
from tailspan_queries.different_view import diagnose, different_csv, different_json
from tailspan_queries.filters import Filters
from tailspan_queries.sampling import WHOLE, Sample
from tailspan_queries.times import Window
from tests.queries.contribution import traffic
from tests.queries.contribution.conftest import EVEN, NOTHING, PLANTED, WEIGHTED
from tests.queries.sample_parts import part_of

NUMBERS = ("kept_requests", "kept_slow", "requests", "slow_requests", "squared_weight", "threshold_ns")


@pytest.mark.parametrize(
    ("name", "slowest", "sample"),
    [
        ("planted", 0.01, WHOLE),
        ("weighted", 0.1, WHOLE),
        ("planted", 0.1, Sample(1500)),
        ("weighted", 0.01, Sample(1500)),
        ("planted", 0.05, Sample(256, stored=True)),
    ],
    ids=str,
)
def test_counts_are_those_of_numpy(
    client: Client, request: pytest.FixtureRequest, name: str, slowest: float, sample: Sample
) -> None:
    """Every count of every attribute, whole and by block, weighted or not, equals NumPy's over the requests read."""
    everyone: list[traffic.Labelled] = request.getfixturevalue(name)
    items = [item for item in everyone if part_of(item.request.trace_id) < sample.parts]
    window = traffic.window({"planted": PLANTED, "weighted": WEIGHTED}[name])
    rows = client.run("different", {**window.parameters, **sample.parameters, "slowest": slowest}).records()
    found = {(row["attribute"], row["value"]): row for row in rows}
    e2e = np.array([item.request.e2e_ns for item in items], dtype=float)
    weights = np.array([item.request.weight for item in items])
    expected = traffic.rows_of(traffic.labels_of(items), e2e, slowest, weights)
    assert len(expected) > 35
    for row in expected:
        match = found[row["attribute"], row["value"]]
        assert {key: match[key] for key in NUMBERS} == pytest.approx({key: row[key] for key in NUMBERS}), match
        assert list(match["block_requests"]) == pytest.approx(row["block_requests"])
        assert list(match["block_slow"]) == pytest.approx(row["block_slow"])
        if (name, slowest) == ("planted", 0.01):
            assert sum(number % 2 == 0 for number in match["members"]) == row["kept_slow"]
    assert "app.user" not in {row["attribute"] for row in rows}


def test_stage_sums_are_those_of_numpy(client: Client, planted: list[traffic.Labelled]) -> None:
    """The sums of each stage over the slow requests of a group, and over all requests, equal NumPy's."""
    rows = client.run("different", traffic.window(PLANTED).parameters).records()
    e2e = np.array([item.request.e2e_ns for item in planted])
    slow = e2e >= np.quantile(e2e, 0.99)
    for value in ("small", "large", ""):
        row = next(row for row in rows if row["value"] == value)
        inside = np.array([value in ("", item.request.model) for item in planted])
        for stage, whole, among_slow in zip(row["stages"], row["stage_sum_ns"], row["slow_sum_ns"], strict=True):
            walls = np.array([item.request.stage_ns(stage) for item in planted], dtype=float)
            assert whole == pytest.approx(walls[inside & slow].sum() if value else walls.sum())
            assert among_slow == pytest.approx(walls[inside & slow].sum())


def planted_is_first(report: DifferentReport, worker: int) -> None:
    """Check that the report begins with the planted worker and its stage, and says that its engine is the same."""
    names = [finding.name for finding in report.findings]
    assert set(names[:2]) == {f"engine engine-{worker}", f"instance worker-{worker}"}
    first, second = report.findings[:2]
    assert first.stage == second.stage == "prefill"
    assert 7e9 < first.stage_extra_ns < 12e9
    assert first.overlap is None
    assert second.overlap is not None
    assert (second.overlap.kind, second.overlap.other) == ("same", first.name)


def test_a_worker_that_is_slow_now_and_then_is_found_first(client: Client, planted: list[traffic.Labelled]) -> None:
    """Two in a hundred requests of one worker of four are slow in prefill: it ranks first, with stage and share."""
    report = different_report(client, traffic.window(PLANTED))
    planted_is_first(report, worker=3)
    first = report.findings[0]
    e2e = np.array([item.request.e2e_ns for item in planted])
    slow = e2e >= np.quantile(e2e, 0.99)
    inside = np.array([item.request.instance == "worker-3" for item in planted])
    assert first.slow_share_ratio == pytest.approx((slow & inside).sum() / slow.sum())
    assert first.share_ratio == pytest.approx(inside.mean())
    expected = 1 - slow[~inside].mean() / slow.mean()
    assert first.vanish_ratio == pytest.approx(expected, rel=1e-9)
    ratio = (slow & inside).sum() / inside.sum() / slow[~inside].mean()
    assert first.times == pytest.approx(ratio, rel=0.05)
    assert 1 < first.times_low < first.times
    assert diagnose(report).startswith(f"{first.name} is {first.slow_share_ratio:.0%}".replace("%", " %"))


def test_it_is_found_in_sampled_data_too(client: Client) -> None:
    """Where slow requests are kept and a fourth of the others stands for them, the same worker ranks first."""
    planted_is_first(different_report(client, traffic.window(WEIGHTED)), worker=1)


def test_it_is_found_in_a_part_of_the_requests_that_are_read(
    client: Client, planted: list[traffic.Labelled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit the traces that their hash chooses are read: counts are scaled up, what was read is said."""
    monkeypatch.setattr("tailspan_queries.different.READ_LIMIT", 4000)
    report = different_report(client, traffic.window(PLANTED))
    read = [item.request for item in planted if part_of(item.request.trace_id) < 2730]
    assert report.sample == Sample(2730)
    assert report.kept_requests == len(read)
    assert report.requests == round(len(read) * 4096 / 2730)
    planted_is_first(report, worker=3)
    document = different_json(report)
    first = document["findings"][0]
    assert (document["read_ratio"], first["requests"], first["slow_requests"]) == pytest.approx(
        (2730 / 4096, *(4096 / 2730 * first[name] for name in ("kept_requests", "kept_slow")))
    )
    margin = 1.959964 * (first["slow_share_ratio"] * (1 - first["slow_share_ratio"]) / report.kept_slow) ** 0.5
    assert first["slow_share_margin_ratio"] == pytest.approx(margin * (1 - 2730 / 4096) ** 0.5, rel=1e-6)
    assert document["cautions"][-2:] == [
        "read: 67 % of the traces (--exact reads all); counts are scaled up, shares of slow within "
        f"{100 * margin * (1 - 2730 / 4096) ** 0.5:.2g} % of those of all requests of "
        f"{units.duration(report.threshold_ns)} or more, 19 times in 20",
        "no group is of `batch`: steps are in no sample; a window of up to 50,000 requests has it, or --exact",
    ]
    names, lines = different_csv(report)
    assert dict(zip(names, lines[0], strict=True))["slow_share_margin_ratio"] == first["slow_share_margin_ratio"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_report_of_a_sample_fits_the_terminal(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    """What was read is said within the width of the terminal, and `--exact` reads the rest."""
    monkeypatch.setattr("tailspan_queries.different.READ_LIMIT", 4000)
    monkeypatch.setenv("COLUMNS", str(width))
    words = ["different", "--since", "2026-11-29T12:00Z", "--until", "2026-11-29T13:00Z", "--url", client.url]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert "! read: 67 % of the traces (--exact reads all)" in text
    assert main([*words, "--exact", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["read_ratio"] == 1


def test_everything_is_read_if_asked(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the limit, `--exact` reads every request; shares then have no sampling error."""
    monkeypatch.setattr("tailspan_queries.different.READ_LIMIT", 1)
    report = different_report(client, traffic.window(PLANTED), everything=True)
    assert (report.sample, report.kept_requests) == (WHOLE, 6000)
    assert {finding.slow_share_margin_ratio for finding in report.findings} == {None}


def test_the_margin_of_a_share_holds_the_truth_as_often_as_it_says() -> None:
    """Of 400 samples, the group's share of all requests beyond the threshold is within the margin in some 95 of 100."""
    rng = np.random.default_rng(3)
    count, ratio, hits = 20_000, 0.4, 0
    inside = rng.random(count) < 0.3
    e2e = rng.lognormal(0, 0.5, count) + np.where(inside & (rng.random(count) < 0.05), 9, 0)
    for _ in range(400):
        read = rng.random(count) < ratio
        slow = e2e >= np.quantile(e2e[read], 0.98)
        share = float(inside[read & slow].mean())
        hits += bool(abs(share - inside[slow].mean()) <= margin_of(share, int((read & slow).sum()), ratio))
    assert 0.92 < hits / 400 < 0.98


@pytest.mark.parametrize(
    ("hour", "slowest", "limit"), [(NOTHING, 0.01, 3000), (NOTHING, 0.05, 2000), (EVEN, 0.02, 3000)]
)
def test_nothing_is_found_in_traffic_without_structure(
    client: Client, monkeypatch: pytest.MonkeyPatch, hour: int, slowest: float, limit: int
) -> None:
    """Only what makes a request long by itself may show: no worker, tenant, priority, model or flag; nor of a part."""
    monkeypatch.setattr("tailspan_queries.different.READ_LIMIT", limit)
    report = different_report(client, traffic.window(hour), slowest=slowest)
    assert report.sample.whole == (limit == 3000)
    assert report.candidates > 40
    assert report.findings == ()
    assert diagnose(report).startswith("nothing is different about the slowest")


def test_a_few_requests_say_nothing(client: Client, planted: list[traffic.Labelled]) -> None:
    """One request, a hundred requests and none give no finding and one clear line."""
    start = planted[0].request.start_ns
    one = different_report(client, Window(start, start + 1))
    assert (one.requests, one.findings) == (1, ())
    assert diagnose(one) == "only 1 request: too few to say what is different (at least 200)."
    hundred = different_report(client, Window(start, planted[100].request.start_ns))
    assert (hundred.requests, hundred.findings) == (100, ())
    empty = different_report(client, traffic.window(40))
    assert (empty.requests, empty.findings) == (0, ())
    assert different_csv(empty)[1] == []
    assert different_json(empty)["findings"] == []


def test_filters_leave_only_their_requests(client: Client, planted: list[traffic.Labelled]) -> None:
    """With a filter the comparison is among the requests that pass it."""
    report = different_report(client, traffic.window(PLANTED), Filters(instance="worker-3"))
    assert report.requests == sum(item.request.instance == "worker-3" for item in planted)
    assert "instance worker-3" not in {finding.name for finding in report.findings}


def labelled(seed: int) -> tuple[dict[str, list[str]], np.ndarray]:
    """Return labels of which `b` goes along with `a`, which is what makes slow, and `c` makes slow by itself."""
    rng = np.random.default_rng(seed)
    a = rng.random(20_000) < 0.2
    b = np.where(a, rng.random(20_000) < 0.7, rng.random(20_000) < 0.1)
    c = rng.random(20_000) < 0.2
    slow = (a & (rng.random(20_000) < 0.05)) | (c & (rng.random(20_000) < 0.03))
    e2e = rng.lognormal(0, 0.3, 20_000) + 50 * slow
    texts = {name: ["yes" if held else "no" for held in values] for name, values in {"a": a, "b": b, "c": c}.items()}
    return texts | {"d": texts["a"]}, e2e


def test_what_only_goes_along_with_a_finding_is_said_to(client: Client) -> None:
    """A group that is slow only because most of it is in another adds nothing beyond it; a cause of its own does."""
    labels, e2e = labelled(4)
    findings = {finding.name: finding for finding in judge(traffic.rows_of(labels, e2e, 0.016))[2]}
    assert set(findings) == {"a yes", "b yes", "c yes", "d yes"}
    assert findings["a yes"].overlap is None
    same, explained, own = (findings[f"{name} yes"].overlap for name in "dbc")
    assert same is not None
    assert (same.kind, same.other, same.common_ratio) == ("same", "a yes", 1)
    assert explained is not None
    assert explained.kind == "explained"
    assert own is None or own.kind == "partly"


def test_groups_that_cannot_be_told_apart_are_not_claimed_to_be(client: Client) -> None:
    """A group that holds another whole, and nothing slow beyond it, is explained by that one."""
    rows = traffic.rows_of(
        {"part": ["yes"] * 40 + ["no"] * 960, "whole": ["yes"] * 500 + ["no"] * 500},
        np.array([9.0] * 20 + [1.0] * 980),
        0.02,
    )
    from tailspan_queries.different_groups import groups_of

    everything, groups = groups_of(rows)
    assert everything is not None
    part, whole = (next(group for group in groups if group.name == f"{name} yes") for name in ("part", "whole"))
    found = overlaps([part, whole], everything.members)[1]
    assert found is not None
    assert found.kind == "explained"
