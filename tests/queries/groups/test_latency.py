"""TTFT, ITL, TPOT, rates, failures and goodput against NumPy and the definition of `vllm bench serve`."""

import json
from collections.abc import Iterable

import numpy as np
import pytest

from tailspan.agent import histogram
from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.goodput import METRICS, Slo, parse_slos
from tailspan_queries.grouping import Grouping, parse_grouping
from tailspan_queries.latency import ITL_ERROR, LatencyRow, latency_report
from tailspan_queries.latency_data import latency_csv, latency_json
from tailspan_queries.records import QUANTILES
from tailspan_queries.times import Window
from tests.queries.groups import grouped_traffic
from tests.queries.groups.grouped_traffic import BEGIN_NS, DAY_NS, HOUR_NS, KEYS, MIDNIGHT_NS, Grouped
from tests.queries.groups.test_stages_by import split, within
from tests.queries.sample_parts import part_of

SLOS = parse_slos(["ttft=900ms", "itl=60ms", "e2e=4s", "tpot=40ms"])
ABORTED = ("client_disconnect", "cancelled")


def weighted(pairs: Iterable[tuple[float, int]]) -> np.ndarray:
    """Return every value as often as its weight says."""
    return np.array([value for value, weight in pairs for _ in range(weight)])


def tpot_ns(item: Grouped) -> float | None:
    """Return the time per output token after the first; None without a first token or a second."""
    request = item.request
    if not request.ttft_ns or request.output_tokens < 2:
        return None
    return max(request.e2e_ns - request.ttft_ns, 0) / (request.output_tokens - 1)


def metrics_of(items: list[Grouped]) -> dict[str, np.ndarray]:
    """Return every value of each metric, weights included; ITL from the gaps themselves."""
    return {
        "ttft": weighted((item.request.ttft_ns, item.weight) for item in items if item.request.ttft_ns),
        "itl": weighted((gap, item.weight) for item in items for gap in item.gaps_ns),
        "tpot": weighted((tpot, item.weight) for item in items if (tpot := tpot_ns(item)) is not None),
        "e2e": weighted((item.request.e2e_ns, item.weight) for item in items),
    }


def completed(item: Grouped) -> bool:
    """Say whether a request neither failed nor was given up."""
    return item.outcome == "ok" and not item.request.failed


def total(items: Iterable[Grouped]) -> int:
    """Return how many requests they stand for."""
    return sum(item.weight for item in items)


def check(row: LatencyRow, items: list[Grouped]) -> None:
    """Compare every number of a row but the goodput with NumPy's."""
    assert (row.requests, row.kept_requests) == (total(items), len(items))
    aborted = [item for item in items if item.outcome in ABORTED]
    assert row.aborted_count == total(aborted)
    assert row.completed == total(filter(completed, items))
    assert row.error_count == row.requests - row.completed - row.aborted_count
    assert row.input_tokens == sum(item.request.input_tokens * item.weight for item in items)
    assert row.output_tokens == sum(item.request.output_tokens * item.weight for item in items)
    first = min(item.request.start_ns for item in items)
    last = max(item.request.start_ns + item.request.e2e_ns for item in items)
    assert row.active_seconds == pytest.approx((last - first) / 1e9, abs=2e-6)
    for metric, values in metrics_of(items).items():
        found = getattr(row, metric)
        assert found.count == len(values)
        if not len(values):
            assert {getattr(found, f"{name}_ns") for name in ("mean", *QUANTILES, "max")} == {None}
            continue
        error, method = (ITL_ERROR, "inverted_cdf") if metric == "itl" else (1e-9, "linear")
        assert found.mean_ns == pytest.approx(values.mean(), rel=error)
        assert found.max_ns == pytest.approx(values.max(), rel=error)
        for name, quantile in QUANTILES.items():
            expected = np.quantile(values, quantile, method=method)  # type: ignore[call-overload]
            assert getattr(found, f"{name}_ns") == pytest.approx(expected, rel=error), (metric, name)


def gaps_p99_ns(item: Grouped) -> float:
    """Return the p99 of a request's own gaps as its histogram has it: the middle of the bucket at that rank."""
    gap = float(np.quantile(item.gaps_ns, 0.99, method="inverted_cdf"))
    return float(2 ** ((histogram.bucket(int(gap)) + 0.5) / 32))


def met(item: Grouped, slo: Slo) -> bool:
    """Say whether a completed request met a limit."""
    match slo.metric:
        case "ttft":
            return 0 < item.request.ttft_ns <= slo.limit_ns
        case "e2e":
            return item.request.e2e_ns <= slo.limit_ns
        case "tpot":
            tpot = tpot_ns(item)
            return item.request.output_tokens < 2 or (tpot is not None and tpot <= slo.limit_ns)
    return item.request.output_tokens < 2 or gaps_p99_ns(item) <= slo.limit_ns


def bench_goodput(ttfts: list[float], tpots: list[float], e2els: list[float], limits: dict[str, float]) -> int:
    """Count good requests by the definition of `vllm bench serve` (`vllm/benchmarks/serve.py`, `calculate_metrics`).

    Over completed requests; values in seconds, limits in milliseconds; TPOT of an answer of one token is 0.
    """
    values = {"ttft": np.array(ttfts), "tpot": np.array(tpots), "e2el": np.array(e2els)}
    good = np.ones(len(ttfts), dtype=bool)
    for name, limit_ms in limits.items():
        good &= values[name] <= limit_ms / 1000
    return int(good.sum())


@pytest.mark.parametrize("by", KEYS)
def test_every_dimension_is_that_of_numpy(client: Client, grouped: list[Grouped], days: Window, by: str) -> None:
    """For each group, counts, tokens, failures and every percentile are NumPy's, weights included; ITL ±1.1 %."""
    report = latency_report(client, days, ALL, parse_grouping(by, "", days))
    expected = split(grouped, KEYS[by])
    assert {row.key for row in report.rows} == set(expected)
    assert (report.requests, report.kept_requests) == (total(grouped), len(grouped))
    for row in report.rows:
        check(row, expected[row.key])
        assert row.rate(row.output_tokens) == pytest.approx(row.output_tokens / (3 * 86_400))


def test_one_formula_has_one_answer(client: Client, days: Window) -> None:
    """By model, the report says what the queries `ttft` and `itl` say, and as many tokens as `throughput`."""
    rows = {row.key: row for row in latency_report(client, days, ALL, Grouping("model")).rows}
    ttft = client.run("ttft", days.parameters).records()
    itl = client.run("itl", days.parameters).records()
    assert {row["model"] for row in ttft} == {row["model"] for row in itl} == set(rows)
    for record in ttft:
        row = rows[record["model"]]
        assert record["requests"] == row.requests
        for metric in ("ttft", "tpot"):
            times = getattr(row, metric)
            assert record[f"{metric}_requests"] == times.count
            for name in ("p50", "p90", "p95", "p99", "max"):
                assert getattr(times, f"{name}_ns") == pytest.approx(record[f"{metric}_{name}_ns"])
    for record in itl:
        times = rows[record["model"]].itl
        assert times.count == record["gaps"]
        for name in ("mean", "p50", "p90", "p95", "p99", "p999", "max"):
            assert getattr(times, f"{name}_ns") == pytest.approx(record[f"itl_{name}_ns"])
    minutes = client.run("throughput", days.parameters).records()
    for column in ("requests", "input_tokens", "output_tokens"):
        assert sum(getattr(row, column) for row in rows.values()) == sum(record[column] for record in minutes)


@pytest.mark.parametrize("by", ["", "model", "output", "priority"])
def test_goodput_is_a_walk_over_the_requests(client: Client, grouped: list[Grouped], days: Window, by: str) -> None:
    """Good are completed requests that met all limits; each limit has its own count, and who missed it alone."""
    for row in latency_report(client, days, ALL, parse_grouping(by, "", days), SLOS).rows:
        items = [item for item in split(grouped, KEYS[by])[row.key] if completed(item)]
        found = row.goodput
        assert found is not None
        assert found.completed == total(items)
        assert found.good == total(item for item in items if all(met(item, slo) for slo in SLOS))
        assert [limit.slo for limit in found.limits] == list(SLOS)
        for limit in found.limits:
            others = [slo for slo in SLOS if slo != limit.slo]
            assert limit.met == total(item for item in items if met(item, limit.slo))
            alone = (item for item in items if not met(item, limit.slo) and all(met(item, slo) for slo in others))
            assert limit.missed_alone == total(alone)
        worst = found.worst
        assert worst is None or worst.met == min(limit.met for limit in found.limits)


@pytest.mark.parametrize("limits", [["ttft:900"], ["tpot:40", "e2el:4000"], ["ttft:700", "tpot:50", "e2el:3000"]])
def test_goodput_is_that_of_vllm_bench_serve(
    client: Client, grouped: list[Grouped], days: Window, limits: list[str]
) -> None:
    """With the limits that `vllm bench serve` knows, spelled its way, the good requests are those it would count."""
    (row,) = latency_report(client, days, slos=parse_slos(limits)).rows
    # To it, a stream without a token is a failed request.
    items = [item for item in grouped if completed(item) and item.request.output_tokens for _ in range(item.weight)]
    good = bench_goodput(
        [item.request.ttft_ns / 1e9 for item in items],
        [(tpot_ns(item) or 0) / 1e9 for item in items],
        [item.request.e2e_ns / 1e9 for item in items],
        {name: float(value) for name, value in (limit.split(":") for limit in limits)},
    )
    empty = [item for item in grouped if completed(item) and not item.request.output_tokens]
    also = total(item for item in empty if all(met(item, slo) for slo in parse_slos(limits)))
    assert row.goodput is not None
    assert row.goodput.good == good + also
    assert row.rate(row.goodput.good) == pytest.approx((good + also) / (3 * 86_400))
    assert 0 < good < len(items)


def test_itl_of_a_request_is_right_but_for_the_width_of_a_bucket(
    client: Client, grouped: list[Grouped], days: Window
) -> None:
    """Only requests whose p99 gap is within 1.1 % of the limit can be on the wrong side of it."""
    (slo,) = parse_slos(["itl=61ms"])
    (row,) = latency_report(client, days, slos=[slo]).rows
    p99 = weighted(
        (float(np.quantile(item.gaps_ns, 0.99, method="inverted_cdf")), item.weight)
        for item in grouped
        if completed(item) and item.gaps_ns
    )
    gapless = total(item for item in grouped if completed(item) and not item.gaps_ns)
    near = int((np.abs(p99 / slo.limit_ns - 1) <= ITL_ERROR).sum())
    assert row.goodput is not None
    assert abs(row.goodput.limits[0].met - gapless - int((p99 <= slo.limit_ns).sum())) <= near < len(p99) / 10


@pytest.mark.parametrize("over", ["10m", "1h", "1d"])
def test_buckets_of_time_and_their_rates(client: Client, grouped: list[Grouped], over: str) -> None:
    """A bucket holds the requests that began in it; the rate of one that the window cuts is over what is left of it."""
    window = Window(BEGIN_NS + 20 * HOUR_NS + 1_000_000_000, BEGIN_NS + 30 * HOUR_NS)
    grouping = parse_grouping("", over, window)
    report = latency_report(client, window, Filters(model="small"), grouping)
    items = [item for item in within(grouped, window) if item.request.model == "small"]
    step_ns = grouping.step_seconds * 1_000_000_000
    expected = split(items, lambda item: str(item.request.start_ns // step_ns * step_ns))
    assert [row.bucket_ns for row in report.rows] == sorted(map(int, expected))
    for row in report.rows:
        check(row, expected[str(row.bucket_ns)])
        assert row.bucket_ns is not None
        begin, end = max(row.bucket_ns, window.since_ns), min(row.bucket_ns + step_ns, window.until_ns)
        assert row.seconds == pytest.approx((end - begin) / 1e9)
        assert row.rate(row.requests) == pytest.approx(row.requests / row.seconds)
    if over == "1d":
        assert [row.bucket_ns for row in report.rows] == [MIDNIGHT_NS - DAY_NS, MIDNIGHT_NS]


def test_answers_without_a_token_have_no_times_of_tokens(client: Client, days: Window) -> None:
    """Requests without output have an end-to-end time and nothing else, in every form; they miss a limit of TTFT."""
    report = latency_report(client, days, ALL, Grouping("output"), SLOS)
    row = next(row for row in report.rows if row.key == "0")
    assert (row.ttft.count, row.itl.count, row.tpot.count) == (0, 0, 0)
    assert row.requests == row.e2e.count > 0
    assert row.goodput is not None
    assert {limit.slo.metric: limit.met for limit in row.goodput.limits}["ttft"] == row.goodput.good == 0
    text = json.dumps(latency_json(report), allow_nan=False)
    assert '"count": 0, "mean": null, "p50": null' in text
    header, lines = latency_csv(report)
    assert len(header) == len(set(header)) == len(lines[0])
    assert None in lines[[line[header.index("key")] for line in lines].index("0")]


def test_an_empty_window_and_one_request(client: Client, grouped: list[Grouped]) -> None:
    """Nothing gives no rows; of one request, its own values are every percentile."""
    empty = Window(BEGIN_NS - DAY_NS, BEGIN_NS - HOUR_NS)
    assert latency_report(client, empty, ALL, parse_grouping("model", "1h", empty), SLOS).rows == ()
    first = min(grouped, key=lambda item: item.request.start_ns)
    alone = Window(first.request.start_ns, first.request.start_ns + 1)
    (row,) = latency_report(client, alone, slos=SLOS).rows
    check(row, [first])
    assert row.goodput is not None
    assert row.goodput.good_ratio in (None, 0.0, 1.0)


def test_requests_that_only_an_engine_traced_have_no_gaps(client: Client) -> None:
    """What an engine's own tracing reported has TTFT and TPOT but no gaps, so that it meets no limit of ITL."""
    window = Window(grouped_traffic.TRACED_NS, grouped_traffic.TRACED_NS + DAY_NS)
    (row,) = latency_report(client, window, ALL, Grouping("model"), parse_slos(["itl=10s", "tpot=100ms"])).rows
    assert (row.key, row.requests, row.completed, row.output_tokens) == ("llama", 2, 2, 22)
    assert (row.ttft.p50_ns, row.tpot.max_ns, row.itl.count) == (1_500_000_000, 100_000_000, 0)
    assert row.goodput is not None
    assert [limit.met for limit in row.goodput.limits] == [0, 2]
    assert (row.goodput.good, row.goodput.limits[0].missed_alone) == (0, 2)


@pytest.mark.parametrize(("scan_limit", "parts"), [(400_000, 955), (0, 256)], ids=["spans", "spans_sample"])
def test_a_sample_is_read_where_there_are_more(
    client: Client,
    grouped: list[Grouped],
    days: Window,
    monkeypatch: pytest.MonkeyPatch,
    scan_limit: int,
    parts: int,
) -> None:
    """Beyond the limit, percentiles are NumPy's over the traces that were read, and counts stand for all."""
    monkeypatch.setattr("tailspan_queries.latency.READ_LIMIT", 700)
    monkeypatch.setattr("tailspan_queries.sampling.SCAN_LIMIT", scan_limit)
    monkeypatch.setattr("tailspan_queries.sampling.FEW", 0)
    report = latency_report(client, days, slos=SLOS)
    items = [item for item in grouped if part_of(item.request.trace_id) < parts]
    scale = 4096 / parts
    (row,) = report.rows
    assert f"over {100 * parts / 4096:.2g} % of the traces" in report.statement
    assert latency_json(report)["read_ratio"] == pytest.approx(parts / 4096)
    assert (row.requests, row.kept_requests) == (round(scale * total(items)), len(items))
    assert row.tpot.p99_ns == pytest.approx(np.percentile(metrics_of(items)["tpot"], 99))
    assert row.goodput is not None
    assert row.goodput.completed == round(scale * total(filter(completed, items)))
    e2e_ns = metrics_of(items)["e2e"]
    counted = client.run("latency_buckets", {**days.parameters, **report.sample.parameters}).records()
    bars = [bar for bar in counted if bar["metric"] == "e2e"]
    for bar in bars:
        within_bar = np.count_nonzero((e2e_ns > bar["low_ns"]) & (e2e_ns <= bar["high_ns"]))
        assert bar["count"] == pytest.approx(scale * within_bar, abs=0.5)
    assert sum(bar["count"] for bar in bars) == pytest.approx(scale * total(items), abs=len(bars))
    assert latency_report(client, days, everything=True).kept_requests == len(grouped)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ttft"], "--slo 'ttft' is no limit. Write --slo ttft=500ms; there are ttft, itl, tpot, e2e"),
        (["latency=1s"], "--slo 'latency=1s' is no limit"),
        (["ttft=-1ms"], "--slo 'ttft=-1ms' is no limit"),
        (["ttft=1h"], "--slo 'ttft=1h' is no limit"),
        (["ttft=0ms"], "--slo 'ttft=0ms' is no time that a request could take. Give more than 0"),
        (["e2e=1s", "e2el=2s"], "--slo gives two limits of e2e. Give one"),
    ],
)
def test_a_limit_that_does_not_read_is_one_clear_line(texts: list[str], message: str) -> None:
    """What is no limit is refused with what to write."""
    with pytest.raises(UserError) as caught:
        parse_slos(texts)
    assert str(caught.value).startswith(message)


def test_limits_are_read_with_their_units() -> None:
    """A limit has a unit or is in milliseconds; they are in the order of a request's life."""
    found = parse_slos(["e2e=1.5m", "tpot=40", "TTFT:0.5s", "itl=50000us"])
    assert [slo.metric for slo in found] == list(METRICS)
    assert [slo.limit_ns for slo in found] == [500_000_000, 50_000_000, 40_000_000, 90_000_000_000]
