"""Sampled requests count with their weight: SQL against NumPy over the same sample, and against the population."""

import numpy as np
import pytest

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.records import EXACT, QUANTILES, REQUEST, ROLLUP
from tailspan_queries.stages import EXACT_LIMIT, choose_method, stage_report
from tailspan_queries.stages_view import headline
from tailspan_queries.times import Window, datetime_ns
from tests.queries import sampled, traffic

Requests = list[traffic.Request]
SAMPLED = Filters(service="sampled")


def values_of(requests: Requests, stage: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the wall times of a stage and their weights."""
    if stage in (REQUEST, attributes.UNATTRIBUTED):
        times = [request.e2e_ns if stage == REQUEST else request.gap_ns for request in requests]
        return np.array(times), weights_of(requests)
    pairs = [(part.wall_ns, request.weight) for request in requests for part in request.stages if part.name == stage]
    return np.array([wall for wall, _ in pairs]), np.array([weight for _, weight in pairs]).astype(int)


def weights_of(requests: Requests) -> np.ndarray:
    """Return the weight of every request; they are whole numbers."""
    return np.array([round(request.weight) for request in requests])


def test_the_sample_is_what_it_should_be(population: Requests, kept: Requests) -> None:
    """A few hundred of the thousands are kept, some of weight 1 and some of weight 10, unlike the rest."""
    assert 500 < len(kept) < len(population) / 6
    assert set(weights_of(kept)) == {1, 10}
    naive = np.percentile([request.e2e_ns for request in kept], 90)
    assert naive > 1.3 * np.percentile([request.e2e_ns for request in population], 90)


@pytest.mark.parametrize("filters", [SAMPLED, Filters(model="sampled-large", instance="worker-1")], ids=str)
def test_exact_percentiles_and_counts_are_weighted(
    client: Client, kept: Requests, sampled_window: Window, filters: Filters
) -> None:
    """Every number of the exact report is that of NumPy with each request repeated as often as its weight says."""
    chosen = [
        request
        for request in kept
        if filters.model in ("", request.model) and filters.instance in ("", request.instance)
    ]
    report = stage_report(client, sampled_window, filters, method=EXACT)
    assert (report.requests, report.kept_requests) == (weights_of(chosen).sum(), len(chosen))
    for row in report.rows:
        values, weights = values_of(chosen, row.stage)
        assert (row.count, row.kept_count) == (weights.sum(), len(values))
        assert row.wall.sum_ns == (values * weights).sum()
        assert row.wall.max_ns == values.max()
        for name, quantile in QUANTILES.items():
            expected = np.percentile(np.repeat(values, weights), quantile * 100)
            assert getattr(row.wall, f"{name}_ns") == pytest.approx(expected, rel=1e-9), (row.stage, name)
    gpu = {row.stage: row.gpu for row in report.rows}["decode"]
    measured = [request for request in chosen if request.model == "sampled-large"]
    parts = [
        (part.gpu_ns, round(r.weight)) for r in measured for part in r.stages if part.gpu_ns and part.name == "decode"
    ]
    assert gpu is not None
    assert gpu.count == sum(weight for _, weight in parts)
    assert gpu.p90_ns == pytest.approx(np.percentile(np.repeat(*np.array(parts).T), 90), rel=1e-9)


def test_rollup_percentiles_are_weighted(client: Client, kept: Requests, sampled_window: Window) -> None:
    """The rollup gives NumPy's weighted counts and sums exactly, and its percentiles within the stated error."""
    report = stage_report(client, sampled_window, SAMPLED, method=ROLLUP)
    assert (report.requests, report.kept_requests) == (weights_of(kept).sum(), len(kept))
    for row in report.rows:
        values, weights = values_of(kept, row.stage)
        assert (row.count, row.kept_count, row.wall.sum_ns) == (weights.sum(), len(values), (values * weights).sum())
        for name, quantile in QUANTILES.items():
            expected = np.quantile(values, quantile, weights=weights, method="inverted_cdf")
            found = getattr(row.wall, f"{name}_ns")
            assert found == pytest.approx(expected, rel=report.method.relative_error), (row.stage, name)
            assert found <= row.wall.max_ns


@pytest.mark.parametrize("method", [EXACT, ROLLUP], ids=lambda method: method.name)
def test_shares_are_weighted(client: Client, kept: Requests, sampled_window: Window, method: object) -> None:
    """Shares of end-to-end, of the tail and of the variance are NumPy's weighted ones, and sum to one."""
    report = stage_report(client, sampled_window, SAMPLED, method=EXACT if method is EXACT else ROLLUP)
    e2e, weights = values_of(kept, REQUEST)
    threshold = np.percentile(np.repeat(e2e, weights), 99)
    tail = e2e >= threshold
    assert report.tail.threshold_ns == pytest.approx(threshold)
    assert report.tail.requests == weights[tail].sum()
    assert report.tail.mean_ns == pytest.approx(np.average(e2e[tail], weights=weights[tail]))
    parts = [row for row in report.rows if row.stage != REQUEST]
    for row in parts:
        values = np.array([request.stage_ns(row.stage) for request in kept])
        assert row.share_ratio == pytest.approx((values * weights).sum() / (e2e * weights).sum(), rel=1e-9)
        expected = (values * weights)[tail].sum() / (e2e * weights)[tail].sum()
        assert row.tail_share_ratio == pytest.approx(expected, rel=1e-9)
        if method is EXACT:
            covariance = np.cov(values, e2e, bias=True, fweights=weights)
            assert row.variance_share_ratio == pytest.approx(covariance[0, 1] / covariance[1, 1], rel=1e-6, abs=1e-9)
    assert sum(row.tail_share_ratio for row in parts) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("method", [EXACT, ROLLUP], ids=lambda method: method.name)
def test_the_sample_speaks_for_the_population(
    client: Client, population: Requests, sampled_window: Window, method: object
) -> None:
    """Counts, percentiles and shares come out near those of all requests; failures and the tail, kept whole, nearer."""
    report = stage_report(client, sampled_window, SAMPLED, method=EXACT if method is EXACT else ROLLUP)
    rows = {row.stage: row for row in report.rows}
    e2e = np.array([request.e2e_ns for request in population])
    # 586 of 5,860 kept: the count has a standard error of 4 %, a percentile one of 2 % in rank.
    assert report.requests == pytest.approx(len(population), rel=0.12)
    for name, tolerance in (("p50", 0.1), ("p90", 0.12), ("p99", 0.05), ("p999", 0.05)):
        expected = np.percentile(e2e, QUANTILES[name] * 100)
        assert getattr(rows[REQUEST].wall, f"{name}_ns") == pytest.approx(expected, rel=tolerance), name
    assert rows[REQUEST].wall.max_ns == e2e.max()
    assert rows[REQUEST].error_count == sum(request.failed for request in population)
    for stage in ("queue", "prefill", "decode"):
        share = sum(request.stage_ns(stage) for request in population) / e2e.sum()
        assert rows[stage].share_ratio == pytest.approx(share, rel=0.1, abs=0.01), stage


def test_stored_requests_decide_about_the_method_and_are_named(
    client: Client, kept: Requests, sampled_window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has to be read is what is stored, whatever it stands for; the first line says both."""
    assert len(kept) <= EXACT_LIMIT
    monkeypatch.setattr("tailspan_queries.stages.EXACT_LIMIT", len(kept))
    assert choose_method(client, sampled_window, SAMPLED) is EXACT
    monkeypatch.setattr("tailspan_queries.stages.EXACT_LIMIT", len(kept) - 1)
    assert choose_method(client, sampled_window, SAMPLED) is ROLLUP
    text = headline(stage_report(client, sampled_window, SAMPLED, method=EXACT))
    assert text.startswith(f"{len(kept):,} requests kept of about {weights_of(kept).sum():,} · ")


def test_ttft_and_tpot_are_weighted(client: Client, kept: Requests, sampled_window: Window) -> None:
    """TTFT and TPOT count each request as often as its weight says."""
    rows = {row["model"]: row for row in client.run("ttft", sampled_window.parameters).records()}
    assert set(rows) == {"sampled-small", "sampled-large"}
    for model, row in rows.items():
        requests = [request for request in kept if request.model == model]
        weights = weights_of(requests)
        several = [request for request in requests if request.output_tokens > 1]
        tpot = [(request.e2e_ns - request.ttft_ns) / (request.output_tokens - 1) for request in several]
        assert (row["requests"], row["kept_requests"]) == (weights.sum(), len(requests))
        assert row["tpot_requests"] == weights_of(several).sum()
        for quantile in (50, 90, 95, 99):
            expected = np.percentile(np.repeat([request.ttft_ns for request in requests], weights), quantile)
            assert row[f"ttft_p{quantile}_ns"] == pytest.approx(expected)
            expected = np.percentile(np.repeat(tpot, weights_of(several)), quantile)
            assert row[f"tpot_p{quantile}_ns"] == pytest.approx(expected)


def test_itl_is_weighted(client: Client, kept: Requests, sampled_window: Window) -> None:
    """Every gap between tokens counts as often as the weight of its request says."""
    rows = {row["model"]: row for row in client.run("itl", sampled_window.parameters).records()}
    for model, row in rows.items():
        pairs = [
            (sampled.gap_ns(request), sampled.gaps(request), round(request.weight))
            for request in kept
            for stage in request.stages
            if request.model == model and stage.name == "decode" and sampled.gaps(request)
        ]
        gap_ns, number, weights = np.array(pairs).T
        assert (row["decode_spans"], row["kept_spans"]) == (weights.sum(), len(pairs))
        assert row["gaps"] == (number * weights).sum()
        assert row["itl_mean_ns"] == pytest.approx(np.average(gap_ns, weights=number * weights), rel=0.011)
        for name, quantile in (("p50", 50), ("p99", 99)):
            expected = np.percentile(gap_ns, quantile, weights=number * weights, method="inverted_cdf")
            assert row[f"itl_{name}_ns"] == pytest.approx(expected, rel=0.011)


def test_minutes_are_weighted(client: Client, kept: Requests, sampled_window: Window) -> None:
    """Throughput and latency by minute count each request and its tokens as often as its weight says."""
    latency = {row["minute"]: row for row in client.run("latency_by_minute", sampled_window.parameters).records()}
    rows = client.run("throughput", sampled_window.parameters).records()
    assert sum(row["kept_requests"] for row in rows) == len(kept)
    for row in rows:
        minute = datetime_ns(row["minute"]) // traffic.MINUTE_NS
        requests = [request for request in kept if request.start_ns // traffic.MINUTE_NS == minute]
        weights = weights_of(requests)
        assert row["requests"] == weights.sum() == latency[row["minute"]]["requests"]
        assert row["requests_per_s"] == pytest.approx(weights.sum() / 60)
        assert row["output_tokens"] == sum(np.array([request.output_tokens for request in requests]) * weights)
        e2e = [request.e2e_ns for request in requests]
        expected = np.percentile(e2e, 50, weights=weights, method="inverted_cdf")
        assert latency[row["minute"]]["e2e_p50_ns"] == pytest.approx(expected, rel=0.008)


def test_counts_of_services_and_errors_are_weighted(client: Client, kept: Requests, sampled_window: Window) -> None:
    """Services, errors and the range of the data say how many requests there were and how many are stored."""
    rows = client.run("services", sampled_window.parameters).records()
    assert sum(row["requests"] for row in rows) == weights_of(kept).sum()
    assert sum(row["kept_count"] for row in rows) == len(kept)
    failed = [request for request in kept if request.failed]
    rows = client.run("errors", sampled_window.parameters).records()
    assert sum(row["request_count"] for row in rows) == weights_of(failed).sum()
    (row,) = client.run("data_range", {**sampled_window.parameters, **SAMPLED.parameters}).records()
    assert (row["window_requests"], row["window_kept"]) == (weights_of(kept).sum(), len(kept))


def test_steps_are_weighted(client: Client, kept_steps: list[traffic.Step], sampled_window: Window) -> None:
    """Sums, means and percentiles of engine steps count each step as often as its weight says."""
    (row,) = client.run("steps", sampled_window.parameters).records()
    weights = np.array([round(step.weight) for step in kept_steps])
    sizes = np.array([step.requests for step in kept_steps])
    wall = np.array([step.duration_ns for step in kept_steps])
    assert (row["step_count"], row["kept_count"]) == (weights.sum(), len(kept_steps))
    assert row["decode_tokens"] == (sizes * weights).sum()
    assert row["requests_mean"] == pytest.approx(np.average(sizes, weights=weights))
    assert row["wall_sum_ns"] == (wall * weights).sum()
    assert row["wall_p99_ns"] == pytest.approx(np.percentile(np.repeat(wall, weights), 99))


def test_a_trace_says_what_it_stands_for(client: Client, kept: Requests) -> None:
    """The weight of a request is in its trace and in the index of traces, as it was sent."""
    request = next(request for request in kept if request.weight > 1)
    window = Window(request.start_ns, request.start_ns + 60 * traffic.MINUTE_NS)
    rows = client.run("trace", {**window.parameters, "trace_id": request.trace_id.hex()}).records()
    assert {row["weight"] for row in rows} == {10.0}
    assert all(attributes.WEIGHT not in row["attributes_double"] for row in rows)


def test_without_sampling_nothing_is_said_about_it(client: Client, bursty: Requests, burst_window: Window) -> None:
    """If every request is stored, the first line has one number."""
    report = stage_report(client, burst_window, ALL, method=EXACT)
    assert report.kept_requests == report.requests == len(bursty)
    assert headline(report).startswith(f"{len(bursty):,} requests · ")
