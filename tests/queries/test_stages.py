"""The stage report against NumPy over the very same requests."""

import io
from collections.abc import Iterable

import numpy as np
import pytest
from rich.console import Console

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.records import (
    EXACT,
    QUANTILES,
    REQUEST,
    ROLLUP,
    STAGE_ORDER,
    Distribution,
    StageReport,
    StageRow,
    Tail,
)
from tailspan_queries.stages import EXACT_LIMIT, choose_method, stage_report
from tailspan_queries.stages_view import wall_table
from tailspan_queries.times import Window
from tests.queries import traffic

FILTERS = [ALL, Filters(model="small"), Filters(model="large", service="chat"), Filters(instance="worker-1")]
CUT = Window(traffic.BEGIN_NS + 3 * traffic.MINUTE_NS + 1, traffic.BEGIN_NS + 9 * traffic.MINUTE_NS + 17_000_000_001)
"""A window whose ends lie within bursts, off the minute."""


def chosen(requests: Iterable[traffic.Request], window: Window, filters: Filters) -> list[traffic.Request]:
    """Return the requests that a report must be about."""
    return [
        request
        for request in requests
        if window.since_ns <= request.start_ns < window.until_ns
        and filters.service in ("", request.service)
        and filters.model in ("", request.model)
        and filters.instance in ("", request.instance)
    ]


def walls(requests: list[traffic.Request], stage: str) -> np.ndarray:
    """Return the wall times of all spans of a stage."""
    if stage == "request":
        return np.array([request.e2e_ns for request in requests])
    if stage == attributes.UNATTRIBUTED:
        return np.array([request.gap_ns for request in requests])
    return np.array([part.wall_ns for request in requests for part in request.stages if part.name == stage])


def busy_and_gpu(requests: list[traffic.Request], stage: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the busy and the measured GPU times of all spans of a stage."""
    parts = [part for request in requests for part in request.stages if part.name == stage]
    return np.array([part.busy_ns for part in parts]), np.array(
        [part.gpu_ns for part in parts if part.gpu_ns is not None]
    )


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("cut", [False, True], ids=["all", "cut"])
def test_exact_percentiles_are_those_of_numpy(
    client: Client, bursty: list[traffic.Request], burst_window: Window, filters: Filters, cut: bool
) -> None:
    """Every count, sum, percentile and maximum of wall, busy and GPU time equals NumPy's over the raw spans."""
    window = CUT if cut else burst_window
    requests = chosen(bursty, window, filters)
    report = stage_report(client, window, filters, method=EXACT)
    assert len(requests) > 200
    assert report.requests == len(requests)
    assert [row.stage for row in report.rows] == [stage for stage in STAGE_ORDER if len(walls(requests, stage))]
    for row in report.rows:
        times = {"wall": walls(requests, row.stage)}
        if row.stage not in ("request", attributes.UNATTRIBUTED):
            times["busy"], times["gpu"] = busy_and_gpu(requests, row.stage)
        assert row.count == len(times["wall"])
        for kind, values in times.items():
            found = getattr(row, kind)
            if not values.any():
                assert found is None
                continue
            assert found.count == len(values)
            assert found.sum_ns == values.sum()
            assert found.max_ns == values.max()
            for name, quantile in QUANTILES.items():
                assert getattr(found, f"{name}_ns") == pytest.approx(np.percentile(values, quantile * 100), rel=1e-9)
    failed = sum(request.failed for request in requests)
    assert {row.stage: row.error_count for row in report.rows}["request"] == failed


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_rollup_percentiles_are_within_the_stated_error(
    client: Client, bursty: list[traffic.Request], burst_window: Window, filters: Filters
) -> None:
    """Each percentile of the rollup is within the error it states of NumPy's at rank ceil(q n); the rest is exact."""
    requests = chosen(bursty, burst_window, filters)
    report = stage_report(client, burst_window, filters, method=ROLLUP)
    error = report.method.relative_error
    assert error == 0.008
    assert f"±{error:.1%}".replace("%", " %") in report.method.statement
    assert report.requests == len(requests)
    for row in report.rows:
        times = {"wall": walls(requests, row.stage)}
        if row.stage not in ("request", attributes.UNATTRIBUTED):
            times["busy"], times["gpu"] = busy_and_gpu(requests, row.stage)
        for kind, values in times.items():
            found = getattr(row, kind)
            if not values.any():
                assert found is None
                continue
            assert (found.count, found.sum_ns, found.max_ns) == (len(values), values.sum(), values.max())
            for name, quantile in QUANTILES.items():
                expected = np.quantile(values, quantile, method="inverted_cdf")
                assert getattr(found, f"{name}_ns") == pytest.approx(expected, rel=error), (row.stage, kind, name)


@pytest.mark.parametrize("method", [EXACT, ROLLUP], ids=lambda method: method.name)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_shares_are_those_of_numpy_and_sum_to_one(
    client: Client, bursty: list[traffic.Request], burst_window: Window, filters: Filters, method: object
) -> None:
    """Share of end-to-end, at the tail and of the variance equal NumPy's, and each of them sums to one."""
    requests = chosen(bursty, burst_window, filters)
    report = stage_report(client, burst_window, filters, method=EXACT if method is EXACT else ROLLUP)
    e2e = walls(requests, "request")
    tail = e2e >= np.percentile(e2e, 99)
    assert report.tail.requests == tail.sum()
    assert report.tail.threshold_ns == pytest.approx(np.percentile(e2e, 99))
    assert report.tail.mean_ns == pytest.approx(e2e[tail].mean())
    parts = [row for row in report.rows if row.stage != "request"]
    for row in parts:
        values = np.array([request.stage_ns(row.stage) for request in requests])
        assert row.share_ratio == pytest.approx(values.sum() / e2e.sum(), rel=1e-9)
        assert row.tail_share_ratio == pytest.approx(values[tail].mean() / e2e[tail].mean(), rel=1e-9)
        assert row.tail_mean_ns == pytest.approx(values[tail].mean(), rel=1e-9)
        expected = np.cov(values, e2e, bias=True)[0, 1] / e2e.var()
        if method is EXACT:
            assert row.variance_share_ratio == pytest.approx(expected, rel=1e-6, abs=1e-9)
    for name in ("share_ratio", "tail_share_ratio", *(["variance_share_ratio"] if method is EXACT else [])):
        assert sum(getattr(row, name) for row in parts) == pytest.approx(1, abs=1e-9)


def test_the_rollup_widens_its_window_to_whole_minutes(client: Client, bursty: list[traffic.Request]) -> None:
    """A window off the minute is widened for the rollup, and the report says which it is about."""
    report = stage_report(client, CUT, method=ROLLUP)
    assert report.window == CUT.whole_minutes
    assert report.requests == len(chosen(bursty, CUT.whole_minutes, ALL))
    parts = [row for row in report.rows if row.stage != "request"]
    assert sum(row.share_ratio for row in parts) == pytest.approx(1, abs=1e-9)


def test_few_requests_are_read_exactly_and_many_from_the_rollup(
    client: Client, bursty: list[traffic.Request], burst_window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless told, the report reads raw spans up to the limit of requests and the rollup above it."""
    assert len(bursty) <= EXACT_LIMIT
    assert choose_method(client, burst_window, ALL) is EXACT
    monkeypatch.setattr("tailspan_queries.stages.EXACT_LIMIT", len(bursty) - 1)
    assert choose_method(client, burst_window, ALL) is ROLLUP
    assert stage_report(client, burst_window).method is ROLLUP


def test_two_requests_of_one_trace_keep_their_own_stages(
    client: Client, pair: tuple[traffic.Request, traffic.Request], pair_window: Window
) -> None:
    """A window that holds one of two requests of a trace counts only the stages of that one."""
    first, second = pair
    only_second = Window(second.start_ns, second.start_ns + 1)
    report = stage_report(client, only_second)
    assert walls_of(report) == {"queue": 500_000_000, "prefill": 2_000_000_000, "respond": 7, "request": second.e2e_ns}
    both = walls_of(stage_report(client, pair_window))
    assert both["queue"] == first.stage_ns("queue") + second.stage_ns("queue")
    assert both["decode"] == first.stage_ns("decode")
    assert both["request"] == first.e2e_ns + second.e2e_ns


def walls_of(report: StageReport) -> dict[str, float]:
    """Return the sum of wall time of every stage but `unattributed`."""
    return {row.stage: row.wall.sum_ns for row in report.rows if row.stage != attributes.UNATTRIBUTED}


def test_one_request_is_its_own_tail(client: Client, pair: tuple[traffic.Request, traffic.Request]) -> None:
    """The tail of a single request is that request."""
    first, _ = pair
    report = stage_report(client, Window(first.start_ns, first.start_ns + 1))
    assert report.tail.requests == 1
    assert report.tail.mean_ns == first.e2e_ns
    assert report.diagnosis.startswith("queue is 77 % of the p99 (4.10 s of 5.31 s): requests wait for the scheduler")


@pytest.mark.parametrize("method", [EXACT, ROLLUP, None], ids=["exact", "rollup", "auto"])
def test_a_window_without_requests_gives_an_empty_report(client: Client, method: object) -> None:
    """No requests: no rows, no sentence, no error."""
    empty = Window(traffic.BEGIN_NS - 10 * traffic.MINUTE_NS, traffic.BEGIN_NS - traffic.MINUTE_NS)
    report = stage_report(client, empty, method=EXACT if method is EXACT else ROLLUP if method is ROLLUP else None)
    assert (report.requests, report.rows, report.diagnosis, report.cautions) == (0, (), "", ())
    assert report.tail.requests == 0


@pytest.mark.parametrize("width", [80, 100])
def test_ten_million_requests_fit_the_terminal(width: int) -> None:
    """The longest counts, times and shares that there are fit 80 columns, and nothing is cut."""
    times = Distribution(10_000_000, 1e16, *[123_400_000] * 6)
    shares = {"unattributed": 0.5555, "decode": 0.4445, REQUEST: 1.0}
    rows = tuple(
        StageRow(stage, 10_000_000, 10_000_000, 0, share, share, share * 1e9, share, times, times, times)
        for stage, share in shares.items()
    )
    report = StageReport(Window(0, 1), ALL, ROLLUP, 10_000_000, rows, Tail(0.99, 100_000, 1e9, 1e9))
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(wall_table(report, width))
    assert "…" not in captured.get()
    assert max(map(len, captured.get().splitlines())) <= width
