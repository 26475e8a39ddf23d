"""The commands of the ledger end to end: real collector, chDB and numbers against NumPy."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import replace

import pytest

from tailspan.errors import UserError
from tailspan_queries import optimizations_store
from tailspan_queries.client import Client
from tailspan_queries.optimizations_records import Optimization
from tests.queries.ledger_traffic import MS, mean_ns
from tests.queries.optimizations.ledger import (
    NAMES,
    WINDOWS,
    Tuned,
    add,
    check_gain,
    environment,
    run,
    text_of,
)
from tests.queries.test_cli import same_as_snapshot
from tests.support.collector import RunningCollector, run_tailspan, wait_until


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
