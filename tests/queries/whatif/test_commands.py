"""`tailspan whatif` and `tailspan advise`: the advice, and what is printed."""

import csv
import io
import json

import pytest
from rich.console import Console

from tailspan.cli import main
from tailspan_queries.advise import advice
from tailspan_queries.advise_remedies import REMEDIES
from tailspan_queries.advise_view import advice_json, render_advice
from tailspan_queries.advise_view import diagnose as diagnose_advice
from tailspan_queries.client import Client
from tailspan_queries.times import iso
from tailspan_queries.whatif import what_if
from tailspan_queries.whatif_records import STAGES, Change
from tailspan_queries.whatif_view import render_what_if, what_if_json
from tests.queries.printed import same_as_snapshot
from tests.queries.whatif.engine import EMPTY, FEW, WINDOW, Ran


def test_windows_without_anything(client: Client) -> None:
    """An empty window and one with too few steps give no number and say why."""
    assert what_if(client, EMPTY, change=Change(arrivals=2.0)).measures == ()
    found = what_if(client, FEW, change=Change(arrivals=2.0))
    assert found.measures == ()
    assert advice(client, EMPTY).rows == ()
    json.dumps([what_if_json(found), advice_json(advice(client, FEW))], allow_nan=False)
    assert found.notes[0].startswith("1 requests of engine few are left out")


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
    """The output of docs/ANALYSIS.md is what the commands print."""
    monkeypatch.setenv("COLUMNS", "100")
    window = ["--since", iso(WINDOW.since_ns), "--until", iso(WINDOW.until_ns), "--url", client.url]
    assert main([*asked, *window]) == 0
    printed = capsys.readouterr().out
    same_as_snapshot(f"{name}.txt", printed)
