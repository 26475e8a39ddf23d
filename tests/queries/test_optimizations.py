"""The optimisation ledger end to end: real collector, chDB and commands, numbers against NumPy."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tailspan.cli import main
from tailspan.errors import UserError
from tailspan_queries import LatencyOptimizer, optimizations_store
from tailspan_queries.client import Client, connect
from tailspan_queries.filters import Filters
from tailspan_queries.layers_contribution import contribution_report
from tailspan_queries.optimizations import ledger_report
from tailspan_queries.optimizations_cautions import cautions
from tailspan_queries.optimizations_measure import RESAMPLES, Sample, gain_interval, sample
from tailspan_queries.optimizations_records import Effect, Measured, Optimization
from tailspan_queries.times import Window, iso
from tests.queries import ledger_traffic, traffic
from tests.queries.ledger_traffic import MS, mean_ns
from tests.queries.test_cli import same_as_snapshot
from tests.support.collector import RunningCollector, run_tailspan, wait_until

MINUTE = traffic.MINUTE_NS
WINDOWS = [Window(traffic.BEGIN_NS + n * 4 * MINUTE, traffic.BEGIN_NS + (n * 4 + 3) * MINUTE) for n in range(4)]
"""Neither; the queue tuned; both tuned; only decode tuned."""
NAMES = ("base", "queue", "both", "decode")
EMPTY = Window(traffic.BEGIN_NS - 9 * MINUTE, traffic.BEGIN_NS - 8 * MINUTE)
Tuned = dict[str, list[traffic.Request]]


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    """Four runs of one server: tuning the queue takes 200 of 300 ms, tuning decode a third of its time."""
    times = ((300, 300), (100, 300), (100, 200), (300, 200))
    return {
        name: ledger_traffic.served(window, 700, number, queue_ms=queue_ms, decode_ms=decode_ms)
        for number, (name, window, (queue_ms, decode_ms)) in enumerate(zip(NAMES, WINDOWS, times, strict=True))
    }


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory, tuned: Tuned) -> Iterator[RunningCollector]:
    """A collector that has these runs and an empty ledger."""
    with RunningCollector(tmp_path_factory.mktemp("ledger") / "data", "--batch-seconds", "0.1") as running:
        spans = [span for run in tuned.values() for request in run for span in traffic.request_spans(request)]
        running.export(*traffic.messages(spans))
        assert running.wait_rows(len(spans)) == len(spans)
        yield running


@pytest.fixture(scope="module")
def reader(ledger: RunningCollector) -> Iterator[Client]:
    """A client of its ClickHouse."""
    client = connect(ledger.url)
    yield client
    client.close()


@pytest.fixture
def empty_ledger(ledger: RunningCollector, reader: Client) -> Iterator[RunningCollector]:
    """The collector with an empty ledger."""
    yield ledger
    entries = optimizations_store.read(reader)
    left = [optimizations_store.remove(reader, item.id, ledger.otlp_endpoint) for item in entries]
    assert optimizations_store.wait_seen(reader, left)


def environment(ledger: RunningCollector) -> dict[str, str]:
    """Return the variables that name the collector, and the width of a terminal."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": ledger.otlp_endpoint,
        "TAILSPAN_CLICKHOUSE_URL": ledger.url,
        "COLUMNS": "100",
    }


def run(ledger: RunningCollector, *words: str) -> Done:
    """Run `tailspan optimizations` against the collector, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment(ledger).items():
            patch.setenv(name, value)
        code = main(["optimizations", *words])
    return Done(code, out.getvalue(), err.getvalue())


def text_of(window: Window) -> str:
    """Return a window as an option takes it."""
    return f"{iso(window.since_ns)}..{iso(window.until_ns)}"


def add(ledger: RunningCollector, reader: Client, stage: str, name: str, before: int, after: int, *more: str) -> str:
    """Record an entry by the command; return its id when ClickHouse shows it."""
    windows = ("--before", text_of(WINDOWS[before]), "--after", text_of(WINDOWS[after]))
    done = run(ledger, "add", "--stage", stage, "--name", name, *windows, *more)
    assert done.returncode == 0, done.stderr
    digits = done.stdout.split()[1]
    assert done.stdout == f"recorded {digits} {name}\n"
    return wait_until(lambda: ids(reader, digits), bool)[0]


def ids(reader: Client, digits: str) -> list[str]:
    """Return the ids of the ledger that begin so."""
    return [item.id for item in optimizations_store.read(reader) if item.id.startswith(digits)]


def kept_weights(ledger: RunningCollector, requests: list[traffic.Request]) -> list[int]:
    """Return the whole weights by which ClickHouse repeats requests in quantiles."""
    rows = ledger.query("select lower(hex(trace_id)), whole_weight from tailspan.requests")
    weights = dict(rows)
    return [weights[item.trace_id.hex()] for item in requests]


def check_gain(effect: dict[str, Any], before: list[traffic.Request], after: list[traffic.Request]) -> float:
    """Compare a measured line with NumPy; return the gain."""
    first, second = mean_ns(before, effect["place"]), mean_ns(after, effect["place"])
    assert effect["origin"] == "measured"
    assert (effect["before_ns"], effect["after_ns"]) == (pytest.approx(first), pytest.approx(second))
    assert effect["improvement_ratio"] == pytest.approx((first - second) / first)
    assert effect["gain_low_ns"] == effect["gain_high_ns"] == pytest.approx(first - second)
    assert effect["interval_low_ns"] < first - second < effect["interval_high_ns"]
    assert (effect["requests_before"], effect["requests_after"]) == (len(before), len(after))
    assert effect["e2e_before_ns"] == pytest.approx(mean_ns(before, "request"))
    return first - second


def test_add_list_report_remove(empty_ledger: RunningCollector, reader: Client, tuned: Tuned) -> None:
    """Two entries are recorded, listed, measured as NumPy does, ordered by what they brought, and taken out again."""
    costs = ("--cost", "more complex", "--cost-gpu-memory", "2GiB", "--cost-accuracy", "0.4")
    decode = add(empty_ledger, reader, "decode", "faster kernels", 1, 2, *costs)
    queue = add(empty_ledger, reader, "queue", "priority scheduling", 0, 1)
    listed = json.loads(run(empty_ledger, "list", "--format", "json").stdout)
    assert [item["id"] for item in listed] == [decode, queue]
    assert listed[0]["cost"] == {"text": "more complex", "gpu_memory_bytes": 2**31, "accuracy_points": 0.4}
    assert listed[0]["before"] == WINDOWS[1].as_json()
    report = json.loads(run(empty_ledger, "report", "--format", "json").stdout)
    (account,) = report["accounts"]
    total = mean_ns(tuned["base"], "request") - mean_ns(tuned["both"], "request")
    assert account["change_ns"] == pytest.approx(total)
    assert account["improvement_ratio"] == pytest.approx(total / mean_ns(tuned["base"], "request"))
    first, second = account["effects"]
    assert [first["id"], second["id"]] == [queue, decode]
    gains = check_gain(first, tuned["base"], tuned["queue"]), check_gain(second, tuned["queue"], tuned["both"])
    assert gains == pytest.approx((200 * 1.13 * MS, 100 * 1.13 * MS), rel=0.2)
    assert first["contribution_low_ratio"] == pytest.approx(gains[0] / total)
    assert account["unexplained_ns"] == pytest.approx([total - sum(gains)] * 2)
    done = run_tailspan("optimizations", "remove", decode[:8], **environment(empty_ledger))  # type: ignore[arg-type]
    assert (done.returncode, done.stdout) == (0, f"removed {decode[:8]} faster kernels\n")
    assert [item.id for item in optimizations_store.read(reader)] == [queue]
    everything = json.loads(run(empty_ledger, "list", "--removed", "--format", "json").stdout)
    assert [(item["id"], item["removed"]) for item in everything][-2:] == [(decode, True), (queue, False)]


def test_the_tail_and_every_stage_are_those_of_numpy(
    empty_ledger: RunningCollector, reader: Client, tuned: Tuned
) -> None:
    """Means of the slowest 1 % before and after, the part of each entry, and how each stage changed."""
    add(empty_ledger, reader, "queue", "priority scheduling", 0, 1)
    (account,) = ledger_report(reader, optimizations_store.read(reader)).accounts
    tails = [ledger_traffic.tail_of(tuned[name], kept_weights(empty_ledger, tuned[name])) for name in ("base", "queue")]
    assert account.tail_before_ns == pytest.approx(mean_ns(tails[0], "request"))
    assert account.tail_after_ns == pytest.approx(mean_ns(tails[1], "request"))
    measured = account.effects[0].measured
    assert measured is not None
    assert measured.tail_gain_ns == pytest.approx(mean_ns(tails[0], "queue") - mean_ns(tails[1], "queue"))
    stages = {row.stage: row for row in account.stages}
    assert list(stages) == ["tls", "tokenize", "queue", "prefill", "decode", "unattributed"]
    for stage, row in stages.items():
        assert row.before_ns == pytest.approx(mean_ns(tuned["base"], stage))
        assert row.after_ns == pytest.approx(mean_ns(tuned["queue"], stage))
    assert sum(row.change_ns or 0 for row in account.stages) == pytest.approx(account.change_ns)
    assert stages["queue"].listed_ns[0] == pytest.approx(stages["queue"].change_ns)
    assert stages["decode"].listed_ns == (0, 0)


def test_the_report_is_as_documented(empty_ledger: RunningCollector, reader: Client) -> None:
    """Two entries, one after the other, are reported as docs/OPTIMIZATIONS.md shows it."""
    words = ("--cost", "more complex; long prompts wait")
    add(empty_ledger, reader, "queue", "priority scheduling", 0, 1, *words)
    add(empty_ledger, reader, "decode", "CUDA graphs for every batch size", 1, 2, "--cost-gpu-memory", "2GiB")
    done = run(empty_ledger, "report")
    assert (done.returncode, done.stderr) == (0, "")
    same_as_snapshot("optimizations.txt", done.stdout)


def test_the_table_fits_and_says_what_matters(empty_ledger: RunningCollector, reader: Client) -> None:
    """A table at width 100: totals, the remainder in one sentence, the cost, no NaN."""
    costs = ("--cost", "starves the long ones", "--cost-gpu-memory", "2GiB")
    add(empty_ledger, reader, "queue", "priority scheduling", 0, 1, *costs)
    assert run(empty_ledger, "import", "tuning-story").stdout == "imported 6 claims of tuning-story\n"
    assert len(wait_until(lambda: optimizations_store.read(reader), lambda found: len(found) >= 7)) == 7
    done = run(empty_ledger, "report", "--price-gpu-memory", "5")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "nan" not in done.stdout.lower()
    text = " ".join(done.stdout.split())
    assert "measured: mean end-to-end" in text
    assert "entries explain" in text
    assert "claimed by tuning-story: mean end-to-end 2.85 s -> 950 ms, 66.7 % better" in text
    assert "2 GiB GPU memory" in text
    table = run(empty_ledger, "list").stdout
    assert max(map(len, table.splitlines())) <= 100
    assert "claim: 35.0 ms/token -> 22.0 ms/token" in table
    assert "-> 2026-11-29 12:04:00..12:07:00" in table
    lines = list(csv.DictReader(io.StringIO(run(empty_ledger, "report", "--format", "csv").stdout)))
    assert [line["origin"] for line in lines] == ["measured"] + ["claim"] * 5
    assert {line["interval_low_ns"] for line in lines[1:]} == {""}
    assert run(empty_ledger, "import", "tuning-story").returncode == 0
    listed = json.loads(run(empty_ledger, "list", "--format", "json").stdout)
    assert len([item for item in listed if item["source"] == "tuning-story"]) == 6


def test_credit_is_shared_over_runs(empty_ledger: RunningCollector, reader: Client, tuned: Tuned) -> None:
    """With all four subsets run the credit is Shapley's; with the windows of the ledger alone, that of one order."""
    queue = add(empty_ledger, reader, "queue", "priority scheduling", 0, 1)
    decode = add(empty_ledger, reader, "decode", "faster kernels", 1, 2)
    base, only_queue, both, only_decode = (mean_ns(tuned[name], "request") for name in NAMES)
    ladder = json.loads(run(empty_ledger, "report", "--format", "json").stdout)["credit"]
    assert ladder["missing"] == [[decode]]
    assert ladder["values_ns"] == pytest.approx({queue: base - only_queue, decode: only_queue - both})
    on = ("none", queue[:8], f"{queue[:8]},faster kernels", decode[:8])
    options = [
        word for window, names in zip(WINDOWS, on, strict=True) for word in ("--run", f"{text_of(window)}={names}")
    ]
    credit = json.loads(run(empty_ledger, "report", *options, "--format", "json").stdout)["credit"]
    assert (credit["missing"], credit["orders"]) == ([], 2)
    shares = {
        queue: (base - only_queue + only_decode - both) / 2,
        decode: (base - only_decode + only_queue - both) / 2,
    }
    assert credit["values_ns"] == pytest.approx(shares)
    table = run(empty_ledger, "report", *options).stdout
    assert "at p99 the parts do not add up" in table
    assert "Shapley: 4 runs, 2 of 2 orders" in table


def test_a_window_without_requests_says_so(empty_ledger: RunningCollector, reader: Client) -> None:
    """An entry about an empty window stays in the report, with the reason instead of numbers."""
    item = Optimization("ab" * 16, "too early", "queue", before=EMPTY, after=WINDOWS[0])
    report = ledger_report(reader, [item])
    (effect,) = report.accounts[0].effects
    assert (effect.origin, effect.why) == ("nothing", "no requests in the window before")
    assert report.accounts[0].total_origin == "nothing"
    assert "no total known" in str(report)
    assert "nan" not in str(report).lower()
    unknown = Optimization("cd" * 16, "nowhere", "", kind="attention", before=WINDOWS[0], after=WINDOWS[1])
    assert ledger_report(reader, [unknown]).accounts[0].effects[0].why == "no step of both windows was timed by part"
    absent = Optimization("ef" * 16, "none", "respond", before=WINDOWS[0], after=WINDOWS[1])
    (effect,) = ledger_report(reader, [absent]).accounts[0].effects
    assert (effect.improvement_ratio, effect.why) == (None, "no request of either window has this stage")


def test_filters_choose_requests(reader: Client, tuned: Tuned) -> None:
    """An entry about one model is measured over the requests of that model, and the report warns of other totals."""
    filters = Filters(model="small")
    item = Optimization("ab" * 16, "a", "queue", before=WINDOWS[0], after=WINDOWS[1], filters=filters)
    (account,) = ledger_report(reader, [item]).accounts
    small = [request for request in tuned["base"] if request.model == "small"]
    assert account.effects[0].before_ns == pytest.approx(mean_ns(small, "queue"))
    assert any("measured over other requests than the total: a" in line for line in account.cautions)
    (account,) = ledger_report(reader, [item], filters=filters).accounts
    assert account.total_before_ns == pytest.approx(mean_ns(small, "request"))


def test_the_python_interface_measures_windows(reader: Client, tuned: Tuned) -> None:
    """`LatencyOptimizer` fills before and after by itself, and takes totals as windows too."""
    optimizer = LatencyOptimizer(reader)
    optimizer.record_optimization("queue", before=WINDOWS[0], after=WINDOWS[1], cost="more complex")
    optimizer.record_optimization("decode", 35, 22, per="token")
    (account,) = optimizer.generate_report(total_before=WINDOWS[0], total_after=WINDOWS[2]).accounts
    assert account.total_after_ns == pytest.approx(mean_ns(tuned["both"], "request"))
    queue = next(effect for effect in account.effects if effect.origin == "measured")
    assert queue.gain_ns[0] == pytest.approx(mean_ns(tuned["base"], "queue") - mean_ns(tuned["queue"], "queue"))
    claim = next(effect for effect in account.effects if effect.origin == "claim")
    assert claim.gain_ns[0] == 0
    rest = mean_ns(tuned["base"], "request") - mean_ns(tuned["base"], "queue")
    rest_after = mean_ns(tuned["both"], "request") - mean_ns(tuned["queue"], "queue")
    fitting = min(rest / (35 * MS), rest_after / (22 * MS))
    assert account.tokens == pytest.approx((0, fitting))
    assert claim.gain_ns[1] == pytest.approx(13 * MS * fitting)


def test_a_part_of_the_model_is_measured_as_a_share_of_requests(
    client: Client, layer_window: Window, layered_requests: list[traffic.Request]
) -> None:
    """An entry about a kind of layer takes its mean a request, as `tailspan layers --e2e` has it, and no interval."""
    middle_ns = sorted(request.start_ns for request in layered_requests)[len(layered_requests) // 2]
    windows = Window(layer_window.since_ns, middle_ns), Window(middle_ns, layer_window.until_ns)
    item = Optimization("ab" * 16, "flash", "", kind="attention", before=windows[0], after=windows[1])
    (effect,) = ledger_report(client, [item]).accounts[0].effects
    rows = [
        next(row for row in contribution_report(client, window, by="kind").parts if row.kind == "attention")
        for window in windows
    ]
    assert rows[0].mean_ns != rows[1].mean_ns
    assert (effect.before_ns, effect.after_ns) == pytest.approx((rows[0].mean_ns, rows[1].mean_ns))
    assert effect.measured is not None
    assert effect.measured.interval_ns is None
    assert effect.measured.tail_gain_ns == pytest.approx(rows[0].tail_mean_ns - rows[1].tail_mean_ns)


# --- samples and intervals ------------------------------------------------------------------------------------------


def test_the_rollup_says_the_same(reader: Client, tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit sums come from the rollup; they differ only by what was under way at the ends of the window."""
    exact = sample(reader, WINDOWS[0], Filters())
    monkeypatch.setattr("tailspan_queries.stages.EXACT_LIMIT", 10)
    rolled = sample(reader, WINDOWS[0], Filters())
    assert len(rolled.requests) == 3 < len(exact.requests)
    assert rolled.kept == exact.kept == len(tuned["base"])
    assert rolled.requests.sum() == exact.requests.sum() == sum(item.weight for item in tuned["base"])
    assert rolled.mean_ns("request") == pytest.approx(exact.mean_ns("request"), rel=1e-9)
    for stage in ("queue", "decode", "unattributed"):
        assert rolled.mean_ns(stage) == pytest.approx(exact.mean_ns(stage), rel=0.005)


def test_blocks_hold_the_requests_that_began_in_them(reader: Client, tuned: Tuned) -> None:
    """Three minutes are cut into sixty blocks of three seconds."""
    found = sample(reader, WINDOWS[0], Filters())
    numbers = np.array([(item.start_ns - WINDOWS[0].since_ns) // (3 * 10**9) for item in tuned["base"]])
    weights = np.array([item.weight for item in tuned["base"]])
    waits = np.array([item.stage_ns("queue") for item in tuned["base"]])
    present = np.unique(numbers)
    assert found.requests == pytest.approx([weights[numbers == block].sum() for block in present])
    assert found.sums_ns["queue"] == pytest.approx([(weights * waits)[numbers == block].sum() for block in present])


def made_sample(rng: np.random.Generator, blocks: int, mean_ms: float) -> Sample:
    """Return a sample whose blocks differ in their rate and in how long all of their requests wait."""
    counts = rng.integers(1, 30, blocks).astype(float)
    waits = mean_ms * MS * rng.lognormal(-0.125, 0.5, blocks)
    return Sample(int(counts.sum()), counts, {"queue": waits * counts})


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    """Drawing blocks one by one gives the same interval within what chance allows."""
    rng = np.random.default_rng(1)
    before, after = made_sample(rng, 60, 300), made_sample(rng, 50, 200)
    gains = []
    for _ in range(RESAMPLES):
        means = []
        for side in (before, after):
            chosen = rng.integers(0, len(side.requests), len(side.requests))
            means.append(side.sums_ns["queue"][chosen].sum() / side.requests[chosen].sum())
        gains.append(means[0] - means[1])
    low, high = np.quantile(gains, (0.025, 0.975))
    interval = gain_interval(before, after, "queue")
    assert interval == pytest.approx((low, high), abs=0.1 * (high - low))
    assert gain_interval(before, made_sample(rng, 7, 200), "queue") is None


def test_the_interval_holds_no_gain_where_there_is_none() -> None:
    """Of 100 comparisons of equal runs about one in twenty sees a gain: 1 to 10 % at sixty blocks."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(100):
        interval = gain_interval(made_sample(rng, 60, 300), made_sample(rng, 60, 300), "queue")
        assert interval is not None
        alarms += not interval[0] <= 0 <= interval[1]
    assert 1 <= alarms <= 10


def test_a_gain_on_average_that_costs_the_tail_is_told() -> None:
    """An entry that made the mean better and the slowest worse says so first; a gain within chance says that too."""
    sample_ = Sample(1000, np.ones(10), {}, {"request": 100.0})
    item = Optimization("ab" * 16, "batching", "queue")
    worse = Measured(100, 90, (5.0, 15.0), 100, 90, -30 * MS, 1000, 1000)
    chance = Measured(100, 90, (-5.0, 15.0), 100, 90, 5, 1000, 1000)
    lines = cautions([Effect(item, "measured", gain_ns=(10, 10), measured=worse)], sample_, sample_, Filters())
    assert lines == ["THE TAIL GOT WORSE: batching gained on average and lost 30.0 ms among the slowest 1 %"]
    (line,) = cautions([Effect(item, "measured", gain_ns=(10, 10), measured=chance)], sample_, sample_, Filters())
    assert line == "the interval of the gain holds 0, so that it may be none: batching"
    few = Sample(99, np.ones(10), {}, {})
    assert cautions([], few, sample_, Filters()) == [
        "a window of the total has 99 requests: p99 is the slowest of them"
    ]


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "--name", "a", "--before", "4h..2h", "--after", "1h..now"], "it is not clear what the optimisation"),
        (
            ["add", "--name", "a", "--stage", "queue", "--before", "4h", "--after", "1h..now"],
            "not of the form FROM..TO",
        ),
        (["add", "--name", "a", "--stage", "queue", "--before", "4h..1h", "--after", "2h..now"], "overlaps"),
        (
            ["add", "--name", "a", "--stage", "queue", "--before", "1h..2h", "--after", "1h..now"],
            "ends before it begins",
        ),
        (["add", "--name", "a", "--stage", "lunch", "--before", "4h..2h", "--after", "1h..now"], "is not one of"),
        (["report", "--total-before", "4h..2h"], "belong together"),
        (["report", "--run", "4h..2h"], "does not say what was on"),
        (["report", "--run", "4h..2h=zz"], "no entry fits 'zz'"),
        (["report", "--price-accuracy", "nan"], "--price-accuracy is nan"),
        (["remove", "zz"], "no entry fits 'zz'"),
        (["import", "nothing.csv"], "cannot read 'nothing.csv'"),
    ],
)
def test_wrong_input_is_one_line(ledger: RunningCollector, words: list[str], message: str) -> None:
    """Exit code 2 and one line on standard error that says what to do."""
    done = run(ledger, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_an_empty_ledger_says_how_to_begin(empty_ledger: RunningCollector) -> None:
    """`list` and `report` succeed with a note."""
    for command in ("list", "report"):
        done = run(empty_ledger, command)
        assert (done.returncode, done.stdout) == (0, "")
        assert "the ledger is empty" in done.stderr


def test_entries_go_over_http_too(
    empty_ledger: RunningCollector, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol is that of the standard variables; --otlp names the endpoint of all signals and leaves no trace."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces")
    item = Optimization("ab" * 16, "a", "queue", layer=0, recorded_by="me")
    optimizations_store.write([item], empty_ledger.otlp_http_endpoint)
    assert optimizations_store.wait_seen(reader, [item])
    (found,) = optimizations_store.read(reader)
    assert replace(found, recorded=None) == item
    assert os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://127.0.0.1:1/v1/traces"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in os.environ
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    with pytest.raises(UserError, match="is no OTLP endpoint"):
        optimizations_store.write([item], "localhost:4317")


def test_a_collector_that_is_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that nobody took is not said to be recorded."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    item = Optimization("ab" * 16, "a", "queue")
    with pytest.raises(UserError, match="did not take the entry"):
        optimizations_store.write([item], "http://127.0.0.1:1")
