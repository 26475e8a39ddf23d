"""What the shipped queries compute, against NumPy."""

import numpy as np
import pytest

from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.slowest import slowest_requests
from tailspan_queries.times import Window, datetime_ns
from tests.queries import traffic

Pair = tuple[traffic.Request, traffic.Request]


def test_ttft_and_tpot_are_those_of_numpy(client: Client, bursty: list[traffic.Request], burst_window: Window) -> None:
    """TTFT and TPOT percentiles by model; a request of one token has no TPOT."""
    rows = {row["model"]: row for row in client.run("ttft", burst_window.parameters).records()}
    assert set(rows) == {"small", "large"}
    for model, row in rows.items():
        requests = [request for request in bursty if request.model == model]
        ttft = np.array([request.ttft_ns for request in requests])
        several = [request for request in requests if request.output_tokens > 1]
        tpot = np.array([(request.e2e_ns - request.ttft_ns) / (request.output_tokens - 1) for request in several])
        assert (row["requests"], row["ttft_requests"]) == (len(requests), len(requests))
        assert row["tpot_requests"] == len(several) < len(requests)
        for quantile in (50, 90, 95, 99):
            assert row[f"ttft_p{quantile}_ns"] == pytest.approx(np.percentile(ttft, quantile))
            assert row[f"tpot_p{quantile}_ns"] == pytest.approx(np.percentile(tpot, quantile))
        assert row["ttft_max_ns"] == ttft.max()


def test_requests_without_a_token_have_no_ttft(client: Client, pair: Pair, pair_window: Window) -> None:
    """A request that failed before its first token counts as a request, not as a TTFT of zero."""
    (row,) = client.run("ttft", pair_window.parameters).records()
    assert (row["requests"], row["ttft_requests"], row["ttft_p50_ns"]) == (2, 1, pair[0].ttft_ns)
    only_second = Window(pair[1].start_ns, pair[1].start_ns + 1)
    (row,) = client.run("ttft", only_second.parameters).records()
    assert (row["requests"], row["ttft_requests"], row["ttft_p50_ns"], row["tpot_max_ns"]) == (1, 0, None, None)


def test_itl_adds_up_histograms_within_their_error(client: Client, pair_window: Window) -> None:
    """Percentiles over all gaps come out of the buckets within 1.1 %."""
    (row,) = client.run("itl", pair_window.parameters).records()
    gaps = np.array([20_000_000] * 90 + [80_000_000] * 10)
    assert (row["decode_spans"], row["gaps"]) == (1, 100)
    assert row["itl_mean_ns"] == pytest.approx(gaps.mean(), rel=0.011)
    for name, quantile in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p999", 99.9)):
        expected = np.percentile(gaps, quantile, method="inverted_cdf")
        assert row[f"itl_{name}_ns"] == pytest.approx(expected, rel=0.011)
    assert row["itl_max_ns"] == pytest.approx(gaps.max(), rel=0.011)


def test_throughput_counts_every_request_and_token_once(
    client: Client, bursty: list[traffic.Request], burst_window: Window
) -> None:
    """Minutes add up to all requests and tokens, and a rate is a sixtieth of them."""
    rows = client.run("throughput", burst_window.parameters).records()
    minutes = {request.start_ns // traffic.MINUTE_NS for request in bursty}
    assert [datetime_ns(row["minute"]) // traffic.MINUTE_NS for row in rows] == sorted(minutes)
    assert sum(row["requests"] for row in rows) == len(bursty)
    assert sum(row["output_tokens"] for row in rows) == sum(request.output_tokens for request in bursty)
    assert all(row["output_tokens_per_s"] == pytest.approx(row["output_tokens"] / 60) for row in rows)


def test_latency_by_minute_is_within_the_error_of_the_rollup(
    client: Client, bursty: list[traffic.Request], burst_window: Window
) -> None:
    """Each minute's p50 and p99 are those of NumPy within 0.8 %."""
    for row in client.run("latency_by_minute", burst_window.parameters).records():
        minute = datetime_ns(row["minute"]) // traffic.MINUTE_NS
        e2e = np.array([request.e2e_ns for request in bursty if request.start_ns // traffic.MINUTE_NS == minute])
        assert row["requests"] == len(e2e)
        assert row["e2e_max_ns"] == e2e.max()
        for name, quantile in (("p50", 50), ("p99", 99)):
            expected = np.percentile(e2e, quantile, method="inverted_cdf")
            assert row[f"e2e_{name}_ns"] == pytest.approx(expected, rel=0.008)


def test_errors_are_counted_by_kind_with_the_latest_trace(
    client: Client, bursty: list[traffic.Request], burst_window: Window
) -> None:
    """Failed requests are grouped, and the trace named is that of the latest."""
    rows = client.run("errors", {**burst_window.parameters, "service": "chat"}).records()
    for row in rows:
        failed = [
            request
            for request in bursty
            if request.failed and request.service == "chat" and request.model == row["model"]
        ]
        assert (row["request_count"], row["error_type"], row["outcome"]) == (len(failed), "RuntimeError", "error")
        assert row["last_trace_id"] == max(failed, key=lambda request: request.start_ns).trace_id.hex()
    assert sum(row["request_count"] for row in rows) == sum(
        request.failed for request in bursty if request.service == "chat"
    )


def test_steps_are_summed_by_engine(client: Client, steps: list[traffic.Step], pair_window: Window) -> None:
    """Batch size, tokens, idle share of each engine."""
    rows = {row["engine_id"]: row for row in client.run("steps", pair_window.parameters).records()}
    assert set(rows) == {"engine-1", "engine-2"}
    row = rows["engine-1"]
    sizes = np.array([step.requests for step in steps])
    assert row["step_count"] == len(steps)
    assert row["requests_mean"] == pytest.approx(sizes.mean())
    assert (row["requests_max"], row["decode_tokens"], row["waiting_max"]) == (sizes.max(), sizes.sum(), 2)
    assert row["wall_p50_ns"] == 38_000_000
    assert row["idle_ratio"] == pytest.approx(2 / 40)
    assert row["kv_usage_max_ratio"] == 0.25
    assert row["gpu_ratio"] is None


@pytest.mark.parametrize("filters", [Filters(), Filters(model="small", service="batch")], ids=str)
def test_the_slowest_requests_and_what_dominates_them(
    client: Client, bursty: list[traffic.Request], burst_window: Window, filters: Filters
) -> None:
    """The slowest requests come first, each with the stage of the largest total."""
    found = slowest_requests(client, burst_window, filters, limit=25)
    requests = [
        request
        for request in bursty
        if filters.model in ("", request.model) and filters.service in ("", request.service)
    ]
    expected = sorted(requests, key=lambda request: -request.e2e_ns)[:25]
    assert [(row.trace_id, row.e2e_ns) for row in found] == [
        (request.trace_id.hex(), request.e2e_ns) for request in expected
    ]
    for row, request in zip(found, expected, strict=True):
        names = {stage.name for stage in request.stages} | {"unattributed"}
        largest = max(names, key=request.stage_ns)
        assert (row.dominant_stage, row.dominant_ns) == (largest, request.stage_ns(largest))
        assert row.dominant_ratio == pytest.approx(request.stage_ns(largest) / request.e2e_ns)
        assert (row.ttft_ns, row.output_tokens) == (request.ttft_ns, request.output_tokens)


def test_services_lists_what_sent_requests(client: Client, bursty: list[traffic.Request], burst_window: Window) -> None:
    """Each service, instance and model with its requests and failures."""
    rows = client.run("services", burst_window.parameters).records()
    assert len(rows) == 8
    for row in rows:
        requests = [
            request
            for request in bursty
            if (request.service, request.instance, request.model) == (row["service"], row["instance"], row["model"])
        ]
        assert row["requests"] == len(requests)
        assert row["error_count"] == sum(request.failed for request in requests)
