"""What a sample of the traces says of the tail, and how near it says it is, against NumPy over the same traces."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tailspan.cli import main
from tailspan_queries import catalog
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL
from tailspan_queries.records import ROLLUP
from tailspan_queries.report.sections_time import where_section
from tailspan_queries.sampling import PARTS, Sample
from tailspan_queries.stages import stage_report
from tailspan_queries.stages_view import stages_csv, stages_json, subtitle
from tailspan_queries.tail import tail_report
from tailspan_queries.times import Window
from tests.queries.contribution import traffic
from tests.queries.contribution.conftest import ENGINE, OVERLAPPING, PLANTED, WEIGHTED
from tests.queries.contribution.test_tail import stage_arrays

Floats = npt.NDArray[np.float64]
GROUPS = 16
STUDENT = 2.131
LIMIT = 1600
PLANTED_WORDS = ["--since", "2026-11-29T12:00Z", "--until", "2026-11-29T13:00Z"]


def tail_share(wall: Floats, e2e: Floats, weights: Floats, quantile: float) -> float:
    """Return the share of a stage in the tail, which begins where these requests say."""
    tail = e2e >= np.quantile(np.repeat(e2e, weights.astype(int)), quantile)
    return float((wall * weights)[tail].sum() / (e2e * weights)[tail].sum())


def margin(wall: Floats, e2e: Floats, weights: Floats, group: npt.NDArray[np.int64], quantile: float) -> float:
    """Return half of the 95 % interval of `tail_share` by leaving out each group of traces in turn."""
    kept = [group != left_out for left_out in range(GROUPS)]
    without = np.array([tail_share(wall[mask], e2e[mask], weights[mask], quantile) for mask in kept])
    return float(STUDENT * np.sqrt((GROUPS - 1) / GROUPS * np.sum((without - np.mean(without)) ** 2)))


def hashes(client: Client, hour: int) -> dict[bytes, int]:
    """Return the hash of each trace of an hour."""
    text = (
        "select trace_id, sipHash64(trace_id) from tailspan.requests "
        "where start >= {since:DateTime64(9, 'UTC')} and start < {until:DateTime64(9, 'UTC')}"
    )
    found = client.execute(catalog.Query("hashes", text), traffic.window(hour).parameters).rows
    return {bytes(trace_id): int(value) for trace_id, value in found}


def chosen(
    client: Client, hour: int, items: Sequence[traffic.Labelled], parts: int
) -> tuple[list[traffic.Labelled], npt.NDArray[np.int64]]:
    """Return the requests of the sample, and the group that each is in."""
    hash_of = hashes(client, hour)
    found = [item for item in items if hash_of[item.request.trace_id] % PARTS < parts]
    return found, np.array([hash_of[item.request.trace_id] // PARTS % GROUPS for item in found])


@pytest.mark.parametrize("quantile", [0.0, 0.6, 0.99])
@pytest.mark.parametrize("hour", [PLANTED, WEIGHTED])
def test_a_sample_and_its_margin_are_those_of_numpy(
    client: Client, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, hour: int, quantile: float
) -> None:
    """Above the limit shares are of the traces that their hash chooses, counts scaled up, the margin a jackknife's."""
    monkeypatch.setattr("tailspan_queries.tail.READ_LIMIT", LIMIT)
    report = tail_report(client, traffic.window(hour), quantile=quantile)
    everyone = request.getfixturevalue({PLANTED: "planted", WEIGHTED: "weighted"}[hour])
    assert report.sample == Sample(PARTS * LIMIT // len(everyone))
    items, group = chosen(client, hour, everyone, report.sample.parts)
    arrays, weights = stage_arrays(items), np.array([item.request.weight for item in items])
    assert LIMIT * 0.8 < len(items) < LIMIT * 1.2
    assert report.whole("all").kept_requests == len(items)
    assert report.whole("all").requests == round(weights.sum() / report.sample.ratio)
    assert [row.stage for row in report.rows] == list(arrays)
    for row in report.rows:
        wall, e2e = arrays[row.stage], arrays["request"]
        assert row.share_ratio == pytest.approx((wall * weights).sum() / (e2e * weights).sum())
        assert row.tail_share_ratio == pytest.approx(tail_share(wall, e2e, weights, quantile))
        expected = margin(wall, e2e, weights, group, quantile) * (1 - report.sample.ratio) ** 0.5
        assert row.tail_share_margin_ratio == pytest.approx(expected, rel=1e-6, abs=1e-12), row.stage


def test_everything_is_read_if_asked(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the limit, `--exact` reads every request, and there is no sampling error."""
    monkeypatch.setattr("tailspan_queries.tail.READ_LIMIT", LIMIT)
    report = tail_report(client, traffic.window(PLANTED), everything=True)
    assert (report.sample.ratio, report.whole("all").kept_requests) == (1, 6000)
    assert {row.tail_share_margin_ratio for row in report.rows} == {None}


@pytest.mark.parametrize("by", ["all", "app.tenant", "priority"])
@pytest.mark.parametrize("hour", [PLANTED, OVERLAPPING, ENGINE])
def test_the_stored_sample_is_that_of_the_spans(client: Client, hour: int, by: str) -> None:
    """Where `spans_sample` is read, every number is that of the same parts of `spans`."""
    asked = {**traffic.window(hour).parameters, "by": by, "quantile": 0.9}
    stored, searched = (
        client.run("tail_by", {**asked, **Sample(256, stored=stored).parameters}).records() for stored in (True, False)
    )
    assert len(stored) == len(searched) > 0
    for ours, theirs in zip(stored, searched, strict=True):
        assert {name: value for name, value in ours.items() if not isinstance(value, float)} == {
            name: value for name, value in theirs.items() if not isinstance(value, float)
        }
        numbers = [name for name, value in ours.items() if isinstance(value, float)]
        assert [ours[name] for name in numbers] == pytest.approx([theirs[name] for name in numbers], abs=1e-12)


def test_one_request_of_a_sample_has_no_margin(client: Client, planted: list[traffic.Labelled]) -> None:
    """Without its only request a key has no tail: the margin is not known."""
    hash_of = hashes(client, PLANTED)
    only = next(item.request for item in planted if hash_of[item.request.trace_id] % PARTS < PARTS - 1)
    window = Window(only.start_ns, only.start_ns + 1)
    rows = client.run("tail_by", {**window.parameters, "parts": PARTS - 1}).records()
    assert {row["kept_requests"] for row in rows} == {1}
    assert {row["tail_share_margin_ratio"] for row in rows} == {None}


def test_the_margin_holds_the_truth_as_often_as_it_says() -> None:
    """Of 400 samples of a population with a slow stage planted, the truth is within the margin in some 95 of 100."""
    rng = np.random.default_rng(23)
    truth, hits = None, 0
    for count in (1_000_000, *[6000] * 400):
        decode, prefill = rng.lognormal(0, 0.5, count), rng.lognormal(-2, 0.5, count)
        prefill += np.where(rng.random(count) < 0.006, rng.uniform(4, 8, count), 0)
        e2e, ones = decode + prefill, np.ones(count)
        share = tail_share(prefill, e2e, ones, 0.99)
        if truth is None:
            truth = share
        else:
            hits += abs(share - truth) <= margin(prefill, e2e, ones, rng.integers(GROUPS, size=count), 0.99)
    assert 0.92 < hits / 400 < 0.98


def test_the_tail_of_the_stage_report_is_that_of_the_tail_report(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the rollup the shares of the tail are of the sample too, and the report says how far off they can be."""
    monkeypatch.setattr("tailspan_queries.tail.READ_LIMIT", LIMIT)
    monkeypatch.setattr("tailspan_queries.stages.READ_LIMIT", LIMIT)
    tail = {row.stage: row for row in tail_report(client, traffic.window(PLANTED)).rows}
    report = stage_report(client, traffic.window(PLANTED), method=ROLLUP)
    assert (report.requests, report.tail.requests) == (6000, tail["request"].tail_requests)
    for row in report.rows:
        assert row.tail_share_ratio == pytest.approx(tail[row.stage].tail_share_ratio)
        assert row.tail_share_margin_ratio == pytest.approx(tail[row.stage].tail_share_margin_ratio)
    worst = max(row.tail_share_margin_ratio or 0 for row in report.rows)
    said = subtitle(report)
    assert said.endswith(f"read from 27 % of the traces: ±{100 * worst:.1f} % at most, 19 times in 20")
    assert max(map(len, said.splitlines())) < 80
    assert stages_json(report)["tail"]["read_ratio"] == pytest.approx(report.tail.sample.ratio)
    assert "tail_share_margin_ratio" in stages_csv(report)[0]


@pytest.mark.parametrize("limit", [LIMIT, 10_000])
def test_the_page_to_send_around_has_the_margin(client: Client, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """A sample has the column, and every line as many cells as there are columns."""
    monkeypatch.setattr("tailspan_queries.tail.READ_LIMIT", limit)
    window = traffic.window(PLANTED)
    answers: Any = SimpleNamespace(tail=tail_report(client, window), window=window, filters=ALL)
    (table,) = where_section(answers).tables
    assert ("±" in table.columns) == (limit < 6000)
    assert {len(row) for row in table.rows} == {len(table.columns)}


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("hour", ["12", "17"], ids=["planted", "overlapping"])
def test_the_table_of_a_sample_fits_the_terminal(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hour: str,
    width: int,
) -> None:
    """The margin has a column, what was read a line; nothing is longer than the terminal is wide."""
    monkeypatch.setattr("tailspan_queries.tail.READ_LIMIT", 200)
    monkeypatch.setenv("COLUMNS", str(width))
    words = ["--since", f"2026-11-29T{hour}:00Z", "--until", f"2026-11-29T{int(hour) + 1}:00Z", "--url", client.url]
    assert main(["tail", *words]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert " ± " in text
    assert "! read: " in text
    assert width < 80 or "…" not in text
    assert main(["tail", *words, "--exact", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["read_ratio"] == 1


def test_an_attribute_that_nobody_has_is_one_line(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no table of requests without the attribute, but a note; JSON has the rows."""
    words = ["tail", *PLANTED_WORDS, "--url", client.url, "--by", "attr:no.such"]
    assert main(words) == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err == "tailspan: no request has the attribute no.such; `tailspan trace ID` lists those of a request\n"
    assert main([*words, "--format", "json"]) == 0
    assert {row["key"] for row in json.loads(capsys.readouterr().out)["rows"]} == {""}
