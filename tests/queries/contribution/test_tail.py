"""What the tail is made of, against NumPy; critical paths against a walk over the moments of each request."""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from tailspan import attributes
from tailspan_queries import catalog
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.records import STAGE_ORDER
from tailspan_queries.tail import TailReport, tail_report
from tailspan_queries.tail_view import tail_csv, tail_json
from tailspan_queries.times import Window
from tests.queries.contribution import traffic
from tests.queries.contribution.conftest import OVERLAPPING, PLANTED, WEIGHTED

SHARES = ("share_ratio", "tail_share_ratio", "variance_share_ratio", "path_ratio", "tail_path_ratio")


def stage_arrays(items: Sequence[traffic.Labelled]) -> dict[str, np.ndarray]:
    """Return the times of each stage, of `unattributed` and of `request`."""
    names = ("queue", "prefill", "decode", "respond", attributes.UNATTRIBUTED)
    found = {name: np.array([item.request.stage_ns(name) for item in items], dtype=float) for name in names}
    return found | {"request": np.array([item.request.e2e_ns for item in items], dtype=float)}


def check(report: TailReport, key: str, items: Sequence[traffic.Labelled], quantile: float) -> None:
    """Compare the rows of a key with NumPy over its requests."""
    arrays = stage_arrays(items)
    weights = np.array([item.request.weight for item in items])
    e2e = arrays["request"]
    threshold = np.quantile(np.repeat(e2e, weights.astype(int)), quantile)
    tail = e2e >= threshold
    centred = e2e - np.average(e2e, weights=weights)
    rows = report.of(key)
    assert [row.stage for row in rows] == list(arrays)
    for row in rows:
        wall = arrays[row.stage]
        assert (row.requests, row.kept_requests) == (weights.sum(), len(items))
        assert (row.tail_requests, row.kept_tail_requests) == (weights[tail].sum(), tail.sum())
        assert row.threshold_ns == pytest.approx(threshold)
        assert row.mean_ns == pytest.approx(np.average(wall, weights=weights))
        assert row.share_ratio == pytest.approx((wall * weights).sum() / (e2e * weights).sum())
        assert row.tail_mean_ns == pytest.approx(np.average(wall[tail], weights=weights[tail]))
        expected = (wall * weights)[tail].sum() / (e2e * weights)[tail].sum()
        assert row.tail_share_ratio == pytest.approx(expected)
        expected = (wall * centred * weights).sum() / (e2e * centred * weights).sum()
        assert row.variance_share_ratio == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert row.path_ratio == pytest.approx(row.share_ratio, abs=1e-9)
        assert row.tail_share_margin_ratio is None
    for name in SHARES:
        assert sum(getattr(row, name) for row in rows if row.stage != "request") == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("quantile", [0.5, 0.99, 0.999])
def test_shares_are_those_of_numpy(client: Client, planted: list[traffic.Labelled], quantile: float) -> None:
    """Means, shares of mean, tail, variance and path of every stage equal NumPy's, and sum to one."""
    check(tail_report(client, traffic.window(PLANTED), quantile=quantile), "all", planted, quantile)


def test_shares_are_weighted(client: Client, weighted: list[traffic.Labelled]) -> None:
    """Requests that stand for others count as often as they stand for."""
    report = tail_report(client, traffic.window(WEIGHTED), quantile=0.9)
    check(report, "all", weighted, 0.9)
    assert report.whole("all").requests > 2 * report.whole("all").kept_requests


@pytest.mark.parametrize("by", ["instance", "service.instance.id", "app.tenant", "priority", attributes.GEN_AI_STREAM])
def test_by_an_attribute_each_key_has_its_own_tail(client: Client, planted: list[traffic.Labelled], by: str) -> None:
    """The rows of a key are those of its requests alone, from a column, a resource, a string, an integer or a flag."""
    report = tail_report(client, traffic.window(PLANTED), by=by, quantile=0.95)
    keys = [key_of(item, by) for item in planted]
    assert set(report.keys) == set(keys)
    for key in report.keys:
        check(report, key, [item for item, found in zip(planted, keys, strict=True) if found == key], 0.95)


def key_of(item: traffic.Labelled, by: str) -> str:
    """Return the value of the attribute that a report goes by."""
    if by in ("instance", "service.instance.id"):
        return item.request.instance
    return str(item.keys.get(attributes.PRIORITY, 0) if by == "priority" else item.keys[by]).lower()


def test_the_largest_keys_are_listed(client: Client, planted: list[traffic.Labelled]) -> None:
    """With a limit the keys with the most requests stay; an attribute that nobody has is one key, and said to be it."""
    report = tail_report(client, traffic.window(PLANTED), by="app.tenant", limit=2)
    counts = np.unique([str(item.keys["app.tenant"]) for item in planted], return_counts=True)
    largest = [str(counts[0][place]) for place in np.argsort(-counts[1], kind="stable")[:2]]
    assert list(report.keys) == largest
    nobody = tail_report(client, traffic.window(PLANTED), by="no.such")
    assert (nobody.keys, nobody.nobody_has_it, report.nobody_has_it) == (("",), True, False)
    base = tail_report(client, traffic.window(PLANTED), by="lora")
    assert (base.keys, base.nobody_has_it, base.label("")) == (("",), False, "(base model)")


def test_one_pass_and_the_query_of_the_stage_report_agree(client: Client) -> None:
    """The tail of `tail_by` is that of `tail_share`, to the last digit of its sums."""
    parameters = {**traffic.window(PLANTED).parameters, "quantile": 0.99}
    one = {row["stage"]: row for row in client.run("tail_by", parameters).records()}
    other = {row["stage"]: row for row in client.run("tail_share", parameters).records()}
    assert set(one) == set(other)
    for stage, row in other.items():
        for name in ("tail_requests", "threshold_ns", "tail_mean_ns", "tail_share_ratio"):
            assert one[stage][name] == pytest.approx(row[name], rel=1e-12)


def test_the_order_of_stages_is_that_of_the_attributes() -> None:
    """The list in the SQL is the list of stages, so that a new stage cannot be forgotten."""
    text = catalog.load("tail_by").sql
    assert tuple(re.findall(r"'(\w+)'", text[text.rindex("transform(") :])) == STAGE_ORDER


def path_of(item: traffic.Overlapping) -> dict[str, int]:
    """Return the critical path of a request by asking for each moment which stage under way ends last."""
    moments = sorted({0, item.e2e_ns, *(t for _, begin, wall in item.stages for t in (begin, begin + wall))})
    moments = [moment for moment in moments if 0 <= moment <= item.e2e_ns]
    found: dict[str, int] = {}
    for begin, end in pairwise(moments):
        running = [(b + wall, -b, name) for name, b, wall in item.stages if b <= begin and b + wall >= end]
        name = max(running)[2] if running else attributes.UNATTRIBUTED
        found[name] = found.get(name, 0) + end - begin
    return found


def test_critical_paths_of_stages_that_overlap(client: Client, overlapping: list[traffic.Overlapping]) -> None:
    """Shares of the path are those of a walk over each request's moments and sum to one; the overlap is pointed out."""
    report = tail_report(client, traffic.window(OVERLAPPING), quantile=0.9)
    paths = [path_of(item) for item in overlapping]
    e2e = np.array([item.e2e_ns for item in overlapping], dtype=float)
    tail = e2e >= np.quantile(e2e, 0.9)
    for row in report.rows:
        if row.stage != "request":
            on_path = np.array([path.get(row.stage, 0) for path in paths], dtype=float)
            assert row.path_ratio == pytest.approx(on_path.sum() / e2e.sum())
            assert row.tail_path_ratio == pytest.approx(on_path[tail].sum() / e2e[tail].sum())
    assert sum(row.path_ratio for row in report.rows if row.stage != "request") == pytest.approx(1)
    assert any(line.startswith("stages overlap") for line in report.cautions)
    longest = max(report.rows, key=lambda row: row.tail_path_ratio * (row.stage != "request"))
    assert f"{longest.stage} " in report.diagnosis or f"of {longest.stage}:" in report.diagnosis


def test_the_sentence_names_what_the_tail_has_more_of(client: Client) -> None:
    """With a slow prefill planted, prefill is what the tail is made of and the mean is not."""
    report = tail_report(client, traffic.window(PLANTED), Filters(instance="worker-3"))
    assert report.diagnosis.startswith("the tail is made of prefill: ")
    same = tail_report(client, traffic.window(PLANTED), quantile=0.0)
    assert same.diagnosis.startswith("the tail is made of the same as the mean: decode is ")


def test_one_request_and_none(client: Client, planted: list[traffic.Labelled]) -> None:
    """A single request is its own tail without a variance; without requests there is nothing, and no error."""
    start = planted[0].request.start_ns
    report = tail_report(client, Window(start, start + 1))
    assert report.whole("all").tail_requests == 1
    assert {row.variance_share_ratio for row in report.rows} == {None}
    assert report.cautions[-1] == "the tail is only 1 request (at least 10 needed)"
    empty = tail_report(client, traffic.window(40), ALL)
    assert (empty.rows, empty.diagnosis, empty.cautions) == ((), "", ())
    assert (tail_json(empty)["rows"], tail_csv(empty)[1]) == ([], [])
