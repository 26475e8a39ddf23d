"""What odd data must give, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tailspan.cli import main
from tests.queries.edges import commands
from tests.queries.edges.odd_requests import MS, TENANT, Odd

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("one", {"queue": 0.2, "prefill": 0.3, "decode": 0.4, "unattributed": 0.1, "request": 1.0}),
        ("stageless", {"unattributed": 1.0, "request": 1.0}),
    ],
)
@pytest.mark.parametrize("method", ["--exact", "--rollup"])
def test_one_request_is_its_own_percentiles(answer: Any, kind: str, shares: dict[str, float], method: str) -> None:
    """Of one request every percentile is its time, and the shares sum to one with what no stage covers."""
    report = answer(kind, "stages", method)
    error = 0 if method == "--exact" else 0.008
    assert report["requests"] == 1
    found = {row["stage"]: row for row in report["stages"]}
    assert {name: row["share_ratio"] for name, row in found.items()} == pytest.approx(shares)
    for name, row in found.items():
        times = [value for key, value in row["wall_ns"].items() if key.startswith("p")]
        assert times == pytest.approx([shares[name] * 100 * MS] * 5, rel=error)


def test_one_request_is_its_own_tail(answer: Any) -> None:
    """The tail of one request is that request; its variance is not known."""
    rows = {row["stage"]: row for row in answer("one", "tail")["rows"]}
    stages = [row for name, row in rows.items() if name != "request"]
    assert sum(row["share_ratio"] for row in stages) == pytest.approx(1)
    assert sum(row["tail_share_ratio"] for row in stages) == pytest.approx(1)
    assert rows["request"]["threshold_ns"] == 100 * MS
    assert all(row["variance_share_ratio"] is None for row in rows.values())


def test_without_tokens_there_is_no_time_for_each(answer: Any, capsys: Capture, odd: dict[str, Odd]) -> None:
    """Requests without tokens have no TTFT and no TPOT, rather than a division by zero; of one token there is none."""
    [row] = answer("tokenless", "latency", "--slo", "tpot=1ms")["rows"]
    assert (row["requests"], row["tpot_ns"]["count"], row["ttft_ns"]["count"]) == (40, 0, 0)
    assert row["tpot_ns"]["p50"] is None
    # A limit of the time for each token is met by what has no second one, as documented.
    assert row["goodput"]["good"] == 40
    assert main(commands.arguments(["latency", "--slo", "tpot=1ms"], odd["tokenless"].window)) == 0
    assert "TPOT is known of no request, and only a request of fewer than two tokens" in capsys.readouterr().out
    [row] = answer("no_tokens", "latency")["rows"]
    assert row["tpot_ns"]["count"] == 15
    # From the first token at 50 ms to the end at 100 ms there are four gaps.
    assert row["tpot_ns"]["p50"] == pytest.approx(50 * MS / 4)
    assert (row["input_tokens"], row["output_tokens"]) == (15 * 100, 15 * 5 + 15)


def test_who_gave_up_is_no_error(answer: Any) -> None:
    """Errors and requests that were given up are counted apart, and none of them completed."""
    [row] = answer("aborted", "latency", "--slo", "e2e=100s")["rows"]
    assert (row["requests"], row["completed"]) == (60, 0)
    # Twelve each of error, lost and stalled; of client_disconnect and cancelled.
    assert (row["error_count"], row["aborted_count"]) == (36, 24)
    assert row["goodput"]["good_ratio"] is None


def test_equal_requests_have_no_variance(answer: Any) -> None:
    """Where all requests are equal, no share of a variance is invented, and halves do not differ."""
    rows = answer("equal", "tail")["rows"]
    assert all(row["variance_share_ratio"] is None for row in rows)
    assert sum(row["tail_share_ratio"] for row in rows if row["stage"] != "request") == pytest.approx(1)
    report = answer("equal", "compare", "--before", "FIRST_HALF", "--after", "SECOND_HALF")
    assert {line["verdict"] for line in report["lines"]} <= {"unclear", ""}


def test_requests_of_one_instant_are_all_there(answer: Any) -> None:
    """Requests that begin in the same nanosecond are counted one by one."""
    assert answer("instant", "stages", "--exact")["requests"] == 60
    assert len(answer("instant", "slowest", "-n", "100")["requests"]) == 60


def test_stages_beyond_the_request_leave_shares_whole(answer: Any) -> None:
    """Of stages that overlap and leave their request, the critical path still sums to the request."""
    for kind in ("overlapping", "negative", "endless"):
        rows = [row for row in answer(kind, "tail")["rows"] if row["stage"] != "request"]
        assert sum(row["share_ratio"] for row in rows) == pytest.approx(1)
        assert sum(row["tail_share_ratio"] for row in rows) == pytest.approx(1)
    rows = [row for row in answer("overlapping", "tail")["rows"] if row["stage"] != "request"]
    assert sum(row["path_ratio"] for row in rows) == pytest.approx(1)


@pytest.mark.parametrize("method", ["--exact", "--rollup"])
def test_negative_times_stay_in_bounds(answer: Any, method: str) -> None:
    """A time below zero does not come out as the largest number that there is."""
    for row in answer("negative", "stages", method)["stages"]:
        assert abs(row["wall_ns"]["sum"]) <= 60 * 200 * MS
        assert row["wall_ns"]["max"] <= 200 * MS


def test_weights_that_cannot_be_count_as_one(answer: Any) -> None:
    """No weight, a negative, an infinite one and none at all count once; large ones as they say."""
    whole = answer("heavy", "stages", "--exact")["stages"][-1]
    assert whole["kept_count"] == 54
    assert whole["count"] == pytest.approx(6 * (1e6 + 1e9 + 12345.678 + 2.5 + 5))
    sampled = answer("sampled", "stages", "--exact")["stages"][-1]
    assert (sampled["kept_count"], sampled["count"]) == (60, 20 * 12.5)


def test_models_with_the_same_stages_stay_apart(answer: Any) -> None:
    """Stages of the same name of two models are two groups, and equal ones are no change."""
    rows = answer("two_models", "stages", "--by", "model")["rows"]
    assert {(row["key"], row["stage"]): row["count"] for row in rows if row["stage"] in ("decode", "request")} == {
        (model, stage): 60 for model in ("small", "large") for stage in ("decode", "request")
    }
    sides = ("--by-attribute", "gen_ai.request.model=small", "--versus", "large")
    assert not {line["verdict"] for line in answer("two_models", "compare", *sides)["lines"]} & {"better", "worse"}


def test_many_values_are_groups_with_a_bound(answer: Any) -> None:
    """Of ten thousand values the groups asked for are listed, and how many there are is told."""
    report = answer("distinct", "stages", "--by", f"attr:{TENANT}")
    assert report["group_count"] == 10_000
    assert len({row["key"] for row in report["rows"]}) == 20
