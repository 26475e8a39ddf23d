"""What odd data must give, computed by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailspan.cli import main
from tailspan_queries.client import connect
from tailspan_queries.compare import compare_groups
from tailspan_queries.compare_records import Group
from tailspan_queries.optimizations_store import read, wait_seen
from tailspan_queries.stages import stage_report
from tailspan_queries.tail import tail_report
from tailspan_queries.times import Window, iso
from tests.queries import traffic
from tests.queries.edges import commands, odd_traffic
from tests.queries.edges.conftest import Remembering
from tests.queries.edges.odd_traffic import DAY, HOSTILE, HOUR, MS, TENANT, Odd
from tests.support.collector import RunningCollector, run_tailspan, wait_until

Capture = pytest.CaptureFixture[str]
_examples = count()


@pytest.fixture
def answer(capsys: Capture, ask: Any, full_client: Remembering, odd: dict[str, Odd]) -> Any:
    """A function that returns what a command says in JSON of a kind of data."""
    ask(full_client)

    def run(kind: str, *words: str) -> Any:
        item = odd[kind]
        assert main(commands.arguments([*words, "--format", "json"], item.window, item.service)) == 0
        return commands.check_json(capsys.readouterr().out)

    return run


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


def test_midnight_divides_nothing(answer: Any, odd: dict[str, Odd]) -> None:
    """A window across midnight has all its requests; by day they are in two lines that sum to it."""
    whole = answer("midnight", "stages", "--exact")["stages"][-1]
    assert whole["count"] == 90
    days = answer("midnight", "stages", "--over", "1d", "--stage", "request")["rows"]
    counts = {row["bucket"]: row["count"] for row in days if row["stage"] == "request"}
    midnight = (odd["midnight"].window.since_ns // DAY + 1) * DAY
    assert counts == {iso(midnight - DAY): 45, iso(midnight): 45}
    assert answer("midnight", "stages", "--rollup")["stages"][-1]["count"] == 90


@pytest.mark.parametrize(
    ("since", "until", "hours"),
    [
        ("2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00", 23),
        ("2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00", 25),
        # The hour that comes twice, told apart by its offset, and both of them.
        ("2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", 1),
        ("2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00", 2),
        # The hour that there is not in Berlin: without an offset it is UTC, where it is.
        ("2026-03-29T02:00", "2026-03-29T03:00", 1),
    ],
)
def test_a_local_day_is_as_long_as_it_was(
    capsys: Capture, ask: Any, full_client: Remembering, since: str, until: str, hours: int
) -> None:
    """Days and hours of a change of clocks have the length that they had, and two requests in each hour."""
    ask(full_client)
    assert main(["latency", "--since", since, "--until", until, "--format", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["seconds"] == hours * 3600
    assert row["requests"] == 2 * hours


def test_the_zone_of_the_reader_changes_nothing(store: RunningCollector) -> None:
    """In Berlin, where clocks change within the window, the answer is the same as in UTC."""
    words = ("slowest", "--since", "2026-10-24T22:00", "--until", "2026-10-25T23:00", "-n", "60")
    command = (*words, "--url", store.url, "--format", "csv")
    here, there = (run_tailspan(*command, TZ=zone) for zone in ("UTC", "Europe/Berlin"))
    assert here.returncode == 0
    assert here.stdout.count("\n") == 51
    assert there.stdout == here.stdout
    assert there.stderr == here.stderr == ""


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


def test_the_ends_of_time_are_in_the_window(answer: Any) -> None:
    """Requests of 1970 and of 2261 are found, at their times."""
    starts = [row["start"] for row in answer("ages", "slowest")["requests"]]
    assert sorted(starts) == ["1970-01-01T00:00:00Z", "2261-12-31T23:59:00Z"]


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


def test_json_has_what_tables_leave_out(answer: Any) -> None:
    """In JSON every value is as it was sent, controls escaped."""
    report = answer("hostile", "stages", "--by", f"attr:{TENANT}", "--groups", "50")
    assert {row["key"] for row in report["rows"]} == set(HOSTILE)


@pytest.mark.parametrize("kind", ["hostile", "negative", "overlapping", "engines", "ages", "stageless"])
def test_traces_and_exports_are_whole(
    capsys: Capture, ask: Any, full_client: Remembering, answer: Any, odd: dict[str, Odd], kind: str
) -> None:
    """A waterfall of odd spans fits the terminal and does no harm, and an export of them is strict JSON."""
    ask(full_client)
    item = odd[kind]
    slowest = answer(kind, "slowest", "-n", "2")["requests"]
    for row in slowest:
        assert main(["trace", row["trace_id"]]) == 0
        found = capsys.readouterr().out
        commands.check_text(found)
        assert max(map(len, found.splitlines())) <= 100
        assert main(["trace", row["trace_id"], "--format", "json"]) == 0
        commands.check_json(capsys.readouterr().out)
        assert main(["trace", row["trace_id"], "--format", "csv"]) == 0
        commands.check_csv(capsys.readouterr().out)
    assert main(commands.arguments(["export", "--perfetto", "-o", "-"], item.window, item.service)) == 0
    found = capsys.readouterr()
    json.loads(found.out, parse_constant=commands.no_constant)
    commands.check_text(found.err)


def test_a_ledger_takes_any_name(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, store: RunningCollector, odd: dict[str, Odd], tmp_path: Any
) -> None:
    """Names that do harm are recorded, listed, reported and removed without doing any."""
    monkeypatch.setenv("TAILSPAN_CLICKHOUSE_URL", store.url)
    monkeypatch.setenv("COLUMNS", "100")
    name = HOSTILE[0] + HOSTILE[1] + HOSTILE[3] + HOSTILE[4]
    window = odd["equal"].window
    middle = (window.since_ns + window.until_ns) // 2
    sides = [commands.between(window.since_ns, middle), commands.between(middle, window.until_ns)]
    endpoint = ["--otlp", store.otlp_endpoint]
    add = ["optimizations", "add", "--stage", "decode", "--before", sides[0], "--after", sides[1], "--cost", name]
    claims = tmp_path / "claims.csv"
    claims.write_text("name,stage,before_ms,after_ms\nzero,queue,0,0\n[red]x[/],decode,5,1\n", encoding="utf-8")
    for words in ([*add, "--name", name], ["optimizations", "import", str(claims), "--source", HOSTILE[1]]):
        assert main([*words, *endpoint]) == 0, capsys.readouterr().err
    commands.check_text(capsys.readouterr().out)
    client = connect(store.url)
    try:
        assert wait_until(lambda: len(read(client)), lambda entries: entries >= 3) == 3
        [entry] = [item for item in read(client) if item.name == name]
        for words in (["list"], ["report"]):
            for form, check in zip(
                commands.FORMATS, (commands.check_text, commands.check_json, commands.check_csv), strict=True
            ):
                assert main(["optimizations", *words, "--format", form]) == 0
                check(capsys.readouterr().out)
        assert main(["optimizations", "remove", entry.id, *endpoint]) == 0
        commands.check_text(capsys.readouterr().out)
        assert wait_seen(client, [item for item in read(client, removed=True) if item.id == entry.id])
    finally:
        client.close()


def test_an_error_that_quotes_data_does_no_harm() -> None:
    """What a user error quotes reaches the terminal without control characters, in one line."""
    found = subprocess.run(
        [sys.executable, "-m", "tailspan", "stages", "--since", "\x1b[31m\nred\x9b"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    commands.check_text(found.stderr)


STAGES = st.lists(
    st.tuples(
        st.sampled_from(("queue", "prefill", "decode", "own")),
        st.integers(-50, 300),
        st.integers(0, 400),
    ),
    max_size=5,
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 3_599), st.integers(1, 500), STAGES, st.sampled_from((1.0, 1.0, 3.5))),
    min_size=1,
    max_size=60,
)


@given(REQUESTS)
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_shares_are_whole_and_nothing_differs_from_itself(
    store: RunningCollector, requests: list[tuple[int, int, list[tuple[str, int, int]], float]]
) -> None:
    """Whatever the stages, shares sum to one with `unattributed`, and a window is not better or worse than itself."""
    begin_ns = odd_traffic.FIRST_DAY_NS + 60 * DAY + next(_examples) * HOUR
    window = Window(begin_ns, begin_ns + HOUR)
    spans = []
    for second, e2e, stages, weight in requests:
        parts = [(name, begin * MS, wall * MS) for name, begin, wall in stages]
        keys = traffic.weight_key(weight)
        # What no stage covers is the request's own word, as agents send it: end-to-end less the stages.
        keys["tailspan.unattributed_ns"] = e2e * MS - sum(wall for _, _, wall in parts)
        spans += odd_traffic.request(begin_ns + second * odd_traffic.SECOND, e2e * MS, parts, keys, service="random")
    before = store.query("select count() from tailspan.spans")[0][0]
    store.export(*traffic.messages(spans))
    assert store.wait_rows(before + len(spans)) >= before + len(spans)
    client = connect(store.url)
    try:
        rows = [row for row in stage_report(client, window).rows if row.stage != "request"]
        assert np.sum([row.share_ratio for row in rows]) == pytest.approx(1, abs=1e-6)
        assert np.sum([row.tail_share_ratio for row in rows]) == pytest.approx(1, abs=1e-6)
        whole = tail_report(client, window)
        parts_of = [row for row in whole.rows if row.stage != "request"]
        for name in ("share_ratio", "tail_share_ratio"):
            assert np.sum([getattr(row, name) for row in parts_of]) == pytest.approx(1, abs=1e-6)
        report = compare_groups(client, Group((window,)), Group((window,)))
        assert not {line.verdict for line in report.lines} & {"better", "worse"}
    finally:
        client.close()
