"""What is predicted for a made-up engine, against the same engine run again with the change, and the commands."""

import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import optimize

from tailspan.cli import main
from tailspan.errors import UserError
from tailspan_queries.advise import advice
from tailspan_queries.advise_remedies import REMEDIES
from tailspan_queries.advise_view import advice_json, render_advice
from tailspan_queries.advise_view import diagnose as diagnose_advice
from tailspan_queries.client import Client
from tailspan_queries.times import Window, iso
from tailspan_queries.whatif import named, what_if
from tailspan_queries.whatif_least_squares import least_squares
from tailspan_queries.whatif_records import STAGES, Base, Change
from tailspan_queries.whatif_view import cautions, render_what_if, what_if_json
from tests.queries import traffic, whatif_traffic
from tests.queries.whatif_traffic import Sequence, Settings, Step
from tests.support.collector import RunningCollector, wait_until

MINUTE_NS = traffic.MINUTE_NS
PLAIN = Settings()
BEGIN_NS = traffic.BEGIN_NS - 2 * 24 * 60 * MINUTE_NS
WINDOW = Window(BEGIN_NS, BEGIN_NS + 10 * MINUTE_NS)
FEW = Window(BEGIN_NS + 20 * MINUTE_NS, BEGIN_NS + 21 * MINUTE_NS)
EMPTY = Window(BEGIN_NS + 40 * MINUTE_NS, BEGIN_NS + 41 * MINUTE_NS)
Ran = tuple[list[Sequence], list[Step]]


@pytest.fixture(scope="module")
def ran() -> Ran:
    """The engine as it is recorded."""
    return whatif_traffic.run(PLAIN, WINDOW.since_ns)


@pytest.fixture(scope="module")
def client(client: Client, collector: RunningCollector, ran: Ran) -> Client:
    """The client of all tests, whose ClickHouse holds the engine too, and one request of another; days earlier."""
    few = replace(PLAIN, engine_id="few", requests=1, seed=2)
    spans = [
        *whatif_traffic.spans(PLAIN, *ran),
        *whatif_traffic.spans(few, *whatif_traffic.run(few, FEW.since_ns)),
    ]
    collector.export(*traffic.messages(spans))
    ours = f"where service = '{whatif_traffic.SERVICE}'"
    stored = f"select count() from tailspan.spans {ours}"
    assert wait_until(lambda: collector.query(stored)[0][0], lambda count: count >= len(spans)) == len(spans)
    rolled_up = f"select sum(span_count) from tailspan.stage_minutes {ours} and stage = 'request'"
    requests = PLAIN.requests + few.requests
    assert wait_until(lambda: collector.query(rolled_up)[0][0], lambda count: count >= requests) == requests
    return client


def e2e_ms(done: list[Sequence]) -> np.ndarray:
    """Return the end-to-end times of the requests that were computed, with 0.2 ms to respond, ms."""
    return np.array([item.last_ns - item.start_ns + 200_000 for item in done if not item.aborted]) / 1e6


def real(settings: Settings) -> tuple[float, float]:
    """Return P50 and P99 of the engine run with other settings, ms."""
    p50, p99 = np.quantile(e2e_ms(whatif_traffic.run(settings, WINDOW.since_ns)[0]), [0.5, 0.99])
    return float(p50), float(p99)


def test_replay_of_what_was_recorded(client: Client, ran: Ran) -> None:
    """The measured numbers are those of the requests, and the replay comes within a few per cent of them."""
    found = what_if(client, WINDOW)
    times = e2e_ms(ran[0])
    assert found.requests == len(times) == PLAIN.requests - 8
    p50, p99 = found.measure("e2e P50"), found.measure("e2e P99")
    assert p50.measured_ns == pytest.approx(np.quantile(times, 0.5) * 1e6, rel=1e-4)
    assert p99.measured_ns == pytest.approx(np.quantile(times, 0.99) * 1e6, rel=1e-4)
    ttft = [item.first_ns - item.start_ns for item in ran[0] if not item.aborted and item.output]
    assert found.measure("TTFT P50").measured_ns == pytest.approx(np.median(ttft), rel=1e-4)
    assert found.error_ratio < 0.08
    (model,) = found.models
    assert (model.limits.max_batch, model.limits.max_tokens) == (PLAIN.max_batch, PLAIN.max_tokens)
    assert model.cost.base == pytest.approx(8e6, rel=0.1)
    assert model.cost.token == pytest.approx(0.03e6, rel=0.1)
    assert not cautions(found)


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (replace(PLAIN, decode=1.3), Change(speedups=(("decode", 1.3),))),
        (replace(PLAIN, prefill=1.5), Change(speedups=(("prefill", 1.5),))),
        (replace(PLAIN, max_batch=4), Change(batch=4)),
        (replace(PLAIN, max_batch=12), Change(batch=12)),
        (replace(PLAIN, gap_ms=PLAIN.gap_ms / 1.3), Change(arrivals=1.3)),
        (replace(PLAIN, output_length=0.5), Change(output_tokens=0.5)),
        (replace(PLAIN, output_length=1.5), Change(output_tokens=1.5)),
        (replace(PLAIN, max_tokens=64), Change(step_tokens=64)),
        (
            replace(PLAIN, max_batch=12, gap_ms=PLAIN.gap_ms / 1.5, output_length=0.5, decode=1.2),
            Change(speedups=(("decode", 1.2),), batch=12, arrivals=1.5, output_tokens=0.5),
        ),
    ],
    ids=["decode", "prefill", "batch-4", "batch-12", "arrivals", "shorter", "longer", "tokens", "several"],
)
def test_prediction_against_the_engine_itself(client: Client, settings: Settings, change: Change) -> None:
    """What is predicted is what the engine does when it is run with the change, which moves its latency a lot."""
    found = what_if(client, WINDOW, change=change, seeds=3)
    p50, p99 = real(settings)
    was = real(PLAIN)
    assert found.measure("e2e P50").predicted_ns == pytest.approx(p50 * 1e6, rel=0.12)
    assert found.measure("e2e P99").predicted_ns == pytest.approx(p99 * 1e6, rel=0.15)
    assert abs(p50 / was[0] - 1) > 0.02


def test_amdahl(client: Client, ran: Ran) -> None:
    """Beside a prediction stands what each request's own stage would save, and the queue makes the gain larger."""
    found = what_if(client, WINDOW, change=Change(speedups=(("decode", 1.3),)))
    done = [item for item in ran[0] if not item.aborted]
    bound = [item.last_ns - item.start_ns + 200_000 - (item.last_ns - item.first_ns) * (1 - 1 / 1.3) for item in done]
    tail = found.measure("e2e P99")
    assert tail.amdahl_ns == pytest.approx(np.quantile(bound, 0.99), rel=1e-4)
    assert found.measure("e2e P50").amdahl_ns == pytest.approx(np.quantile(bound, 0.5), rel=1e-4)
    assert tail.predicted_ns is not None
    assert tail.amdahl_ns is not None
    assert tail.low_ns is not None
    assert tail.high_ns is not None
    assert tail.predicted_ns < tail.amdahl_ns
    assert tail.low_ns <= tail.predicted_ns <= tail.high_ns
    assert found.measure("queue P99").amdahl_ns == found.measure("queue P99").measured_ns
    assert what_if(client, WINDOW, change=Change(arrivals=2.0), seeds=1).measure("e2e P99").amdahl_ns is None


def test_stages_beside_the_engine(client: Client) -> None:
    """Faster tokenizing brings requests earlier, faster responding is subtracted, a shorter queue is divided."""
    plain = what_if(client, WINDOW, seeds=2)
    for stage, most_ns in (("tokenize", 2e6), ("respond", 0.2e6)):
        found = what_if(client, WINDOW, change=Change(speedups=((stage, 1e9),)), seeds=2)
        saved = (plain.measure("e2e mean").model_ns or 0) - (found.measure("e2e mean").predicted_ns or 0)
        # Who comes earlier may join an earlier step, or wait longer.
        assert 0 < saved < 2 * most_ns
    assert saved == pytest.approx(0.2e6)
    halved = what_if(client, WINDOW, change=Change(speedups=(("queue", 2.0),)), seeds=2)
    assert halved.measure("queue P99").predicted_ns == pytest.approx((plain.measure("queue P99").model_ns or 0) / 2)


def test_same_seed_same_answer(client: Client) -> None:
    """The answer is the same every time, and without a change it is the replay."""
    change = Change(prompt_cache=0.3)
    assert (
        what_if(client, WINDOW, change=change, seeds=2).measures
        == what_if(client, WINDOW, change=change, seeds=2).measures
    )
    plain = what_if(client, WINDOW, seeds=2).measure("e2e P99")
    assert plain.predicted_ns == plain.model_ns


def test_overload_is_said(client: Client) -> None:
    """A change that the engine cannot keep up with is called so."""
    assert any("cannot keep up" in note for note in what_if(client, WINDOW, change=Change(arrivals=4.0), seeds=1).notes)
    assert not any(
        "cannot keep up" in note for note in what_if(client, WINDOW, change=Change(arrivals=0.5), seeds=1).notes
    )


def test_changes_within_the_error_are_said(client: Client) -> None:
    """A change smaller than what the replay is off by is called so, a large one is not."""
    small, large = (
        what_if(client, WINDOW, change=Change(speedups=((stage, 1.3),)), seeds=2) for stage in ("respond", "decode")
    )
    assert any("e2e P50" in line and "may be nothing" in line for line in cautions(small))
    assert not any("may be nothing" in line for line in cautions(large))


def test_notes_of_many_engines() -> None:
    """A note names one or two engines, counts more of them, and says nothing where there is only one."""
    assert named(["a"], 1) == ""
    assert named(["a", "b"], 5) == "a, b: "
    assert named(["a", "b", "c"], 5) == "3 of 5 engines: "


def test_windows_without_anything(client: Client) -> None:
    """An empty window and one with too few steps give no number and say why."""
    assert what_if(client, EMPTY, change=Change(arrivals=2.0)).measures == ()
    found = what_if(client, FEW, change=Change(arrivals=2.0))
    assert found.measures == ()
    assert advice(client, EMPTY).rows == ()
    json.dumps([what_if_json(found), advice_json(advice(client, FEW))], allow_nan=False)
    assert found.notes[0].startswith("1 requests of engine few are left out")


def test_window_in_the_middle(client: Client, ran: Ran) -> None:
    """Requests that were in the engine when the window began are replayed and not counted; of many the latest count."""
    starts = sorted(item.start_ns for item in ran[0] if not item.aborted)
    middle = Window(round(starts[150]) - 1000, WINDOW.until_ns)
    found = what_if(client, middle, seeds=2)
    assert found.requests == len(starts) - 150
    (model,) = found.models
    assert 0 < len(model.requests) - found.requests < 50
    assert found.error_ratio < 0.15
    latest = what_if(client, WINDOW, limit=100, seeds=1)
    # Some of the latest were aborted in the queue.
    assert 95 <= latest.requests <= 100
    assert any("only the latest" in note for note in latest.notes)


def test_far_off_is_refused(client: Client) -> None:
    """With limits that the engine did not have the replay is far off, and nothing is predicted unless forced."""
    with pytest.raises(UserError, match="too far"):
        what_if(client, WINDOW, base=Base(max_batch=1), seeds=1)
    found = what_if(client, WINDOW, base=Base(max_batch=1), seeds=1, force=True)
    assert found.error_ratio > 0.5
    assert any("with care" in line for line in cautions(found))


def test_advice(client: Client, ran: Ran) -> None:
    """Stages come in the order of their gain, shares are those of the requests, and each has remedies with costs."""
    report = advice(client, WINDOW, seeds=2)
    gains = [row.p99_change_ratio for row in report.rows]
    assert gains == sorted(gains)
    done = [item for item in ran[0] if not item.aborted]
    e2e = sum(item.last_ns - item.start_ns + 200_000 for item in done)
    by_stage = {row.stage: row for row in report.rows}
    assert set(by_stage) == {"tokenize", "queue", "prefill", "decode", "respond"}
    decode = sum(item.last_ns - item.first_ns for item in done)
    assert by_stage["decode"].share_ratio == pytest.approx(decode / e2e, rel=1e-4)
    assert by_stage["respond"].p99_change_ratio == pytest.approx(0, abs=1e-3)
    assert "Start with decode" in diagnose_advice(report)
    single = what_if(client, WINDOW, change=Change(speedups=(("decode", 1.3),)), seeds=2)
    assert by_stage["decode"].p99_change_ratio == pytest.approx(single.measure("e2e P99").change_ratio)
    by_mean = advice(client, WINDOW, by="mean", seeds=1).rows
    assert [row.mean_change_ratio for row in by_mean] == sorted(row.mean_change_ratio for row in by_mean)


def test_every_stage_has_remedies() -> None:
    """No stage is left without advice, and no remedy without its cost."""
    assert set(REMEDIES) == set(STAGES)
    assert all(remedy.name and remedy.cost for remedies in REMEDIES.values() for remedy in remedies)


def test_tables_fit(client: Client) -> None:
    """What is printed fits into 100 columns."""
    reports = (
        render_what_if(what_if(client, WINDOW, change=Change(speedups=(("decode", 1.3),)), seeds=1)),
        render_what_if(what_if(client, WINDOW, seeds=1)),
        render_advice(advice(client, WINDOW, seeds=1)),
    )
    for report in reports:
        out = io.StringIO()
        Console(file=out, width=100).print(report)
        assert "…" not in out.getvalue()
        assert "e2e" in out.getvalue()


def test_command(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a table, JSON that holds the same numbers, CSV, and one line for mistakes."""
    window = ["--since", iso(WINDOW.since_ns), "--until", iso(WINDOW.until_ns), "--url", client.url]
    asked = ["whatif", "--stage", "decode", "--speedup", "1.3", "--seeds", "2", *window]
    assert main(asked) == 0
    assert "decode 1.3 times as fast" in capsys.readouterr().out
    assert main([*asked, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = what_if(client, WINDOW, change=Change(speedups=(("decode", 1.3),)), seeds=2)
    assert answer["change"] == {"speedups": [["decode", 1.3]]}
    assert [row["predicted_ns"] for row in answer["measures"]] == [row.predicted_ns for row in found.measures]
    several = ["--batch", "8", "--arrivals", "1.2", "--output-tokens", "0.8", "--step-tokens", "128", "--kv-cache", "2"]
    assert main(["whatif", *several, *window, "--seeds", "1", "--format", "json"]) == 0
    expected = {"batch": 8, "arrivals": 1.2, "output_tokens": 0.8, "step_tokens": 128, "kv_cache": 2.0}
    assert json.loads(capsys.readouterr().out)["change"] == expected
    assert main([*asked, "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(line["model_ns"]) for line in lines] == [row.model_ns for row in found.measures]
    assert main(["advise", *window, "--requests", "100", "--force", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["remedies"]
    for wrong in (["--stage", "decode"], ["--speedup", "2"], ["--stage", "gpu", "--speedup", "2"], ["--arrivals", "0"]):
        assert main(["whatif", *wrong, *window]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["whatif", "--layer", "attention=2", *window]) == 2
    assert "no layer was timed" in capsys.readouterr().err
    empty = ["--since", iso(EMPTY.since_ns), "--until", iso(EMPTY.until_ns), "--url", client.url]
    assert main(["whatif", *empty]) == 0
    assert "no requests" in capsys.readouterr().err
    assert main(["advise", *empty]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "asked"),
    [("whatif", ["whatif", "--stage", "decode", "--speedup", "1.3"]), ("advise", ["advise"])],
)
def test_what_is_printed(
    client: Client, name: str, asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of docs/ANALYSIS.md is what the commands print; TAILSPAN_UPDATE_SNAPSHOTS=1 stores it anew."""
    monkeypatch.setenv("COLUMNS", "100")
    window = ["--since", iso(WINDOW.since_ns), "--until", iso(WINDOW.until_ns), "--url", client.url]
    assert main([*asked, *window]) == 0
    printed = capsys.readouterr().out
    stored = Path(__file__).parent / "snapshots" / f"{name}.txt"
    if os.environ.get("TAILSPAN_UPDATE_SNAPSHOTS"):
        stored.write_text(printed, encoding="utf-8")
    assert printed == stored.read_text(encoding="utf-8")


def test_least_squares_is_that_of_scipy() -> None:
    """Coefficients without negative ones are those of scipy's solver."""
    random = np.random.default_rng(1)
    for _ in range(10):
        design = random.normal(size=(40, 5)) * random.uniform(0.1, 1000, 5)
        values, weight = random.normal(size=40), random.uniform(0.5, 3, 40)
        expected, _ = optimize.nnls(design * np.sqrt(weight)[:, None], values * np.sqrt(weight))
        assert least_squares(design, values, weight) == pytest.approx(expected, rel=1e-6, abs=1e-9)
