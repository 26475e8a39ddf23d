"""`tailspan latency` and `tailspan stages --by/--over` as a user calls them."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tailspan.cli import main
from tests.queries.printed import rounded, same_as_snapshot

SNAPSHOTS = Path(__file__).parent / "snapshots"
DAYS = ["--since", "2026-10-24", "--until", "2026-10-27"]
NIGHT = ["--since", "2026-10-24T21:30Z", "--until", "2026-10-25T03:00Z"]
ENGINES = ["--since", "2026-11-03", "--until", "2026-11-04"]
EMPTY = ["--since", "2026-09-01", "--until", "2026-09-02"]
LIMITS = ["--slo", "ttft=900ms", "--slo", "itl=60ms", "--slo", "tpot=40ms", "--slo", "e2e=4s"]
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("commands_ask_here")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("stages_by_model.txt", ["stages", *DAYS, "--by", "model"]),
        ("stages_by_prompt.txt", ["stages", *DAYS, "--by", "prompt", "--stage", "prefill", "--time", "all"]),
        ("stages_by_attribute.txt", ["stages", *DAYS, "--by", "attr:tenant", "--stage", "queue", "--groups", "2"]),
        ("stages_over.txt", ["stages", *NIGHT, "--over", "1h", "--stage", "request", "--stage", "queue"]),
        ("stages_over_rollup.txt", ["stages", *DAYS, "--over", "1d", "--by", "model", "--rollup"]),
        ("stages_over_gap.txt", ["stages", *NIGHT, "--over", "5m", "--model", "large", "--service", "batch"]),
        ("stages_by.json", ["stages", *NIGHT, "--by", "lora", "--stage", "decode", "--format", "json"]),
        ("latency.txt", ["latency", *DAYS, *LIMITS]),
        ("latency_plain.txt", ["latency", *NIGHT]),
        ("latency_idle.txt", ["latency", *ENGINES, "--model", "llama", "--slo", "ttft=1s", "--slo", "e2e=60s"]),
        ("stages_by_batch.txt", ["stages", *ENGINES, "--by", "batch", "--stage", "decode"]),
        ("latency_by_output.txt", ["latency", *DAYS, "--by", "output", *LIMITS]),
        ("latency_over.txt", ["latency", *NIGHT, "--over", "1h", *LIMITS[:2]]),
        ("latency.json", ["latency", *NIGHT, "--by", "priority", *LIMITS, "--format", "json"]),
    ],
)
def test_output_is_as_documented(capsys: Capture, name: str, arguments: list[str]) -> None:
    """Each command prints what its snapshot holds, nothing to standard error, no colour, at most 100 columns."""
    assert main(arguments) == 0
    found = capsys.readouterr()
    assert found.err == ""
    assert "\x1b" not in found.out
    if name.endswith(".txt"):
        assert max(map(len, found.out.splitlines())) <= 100
        assert not re.search(r"\bnan\b", found.out)
    same_as_snapshot(name, rounded(found.out), SNAPSHOTS)


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize(
    "arguments",
    [
        ["stages", *DAYS, "--by", "engine"],
        ["stages", *NIGHT, "--over", "1h", "--by", "model"],
        ["latency", *DAYS, *LIMITS],
        ["latency", *DAYS, "--by", "instance", *LIMITS],
        ["latency", *NIGHT, "--over", "1h", "--by", "stream"],
    ],
)
def test_tables_fit_the_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], columns: int
) -> None:
    """In a narrow and in a wide terminal no line is longer than the terminal, and nothing is cut."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["stages", *DAYS, "--by", "stream"],
        ["stages", *DAYS, "--over", "1d", "--rollup"],
        ["latency", *DAYS, "--by", "attr:tenant", *LIMITS],
        ["latency", *DAYS],
    ],
)
def test_json_is_json_and_csv_is_csv(capsys: Capture, arguments: list[str]) -> None:
    """JSON and CSV can be read back and agree in the number of rows."""
    assert main([*arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--format", "csv"]) == 0
    header, *lines = csv.reader(io.StringIO(capsys.readouterr().out))
    assert all(len(line) == len(header) for line in lines)
    assert len(document["rows"]) == len(lines) > 0


@pytest.mark.parametrize(
    "arguments", [["latency", *LIMITS], ["latency", "--over", "1m"], ["stages", "--by", "model"]], ids=" ".join
)
def test_an_empty_window_says_where_there_are_requests(capsys: Capture, arguments: list[str]) -> None:
    """Without requests there is no table, one line to standard error, and exit code 0."""
    assert main([*arguments, *EMPTY]) == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("tailspan: no requests between 2026-09-01 00:00:00 and 2026-09-02 00:00:00 UTC; there")
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stages", "--stage", "queue"], "--stage chooses tables of --by and --over. Add --by model"),
        (["stages", *DAYS, "--by", "model", "--stage", "wait"], "there is no stage 'wait'. Use one of: tls, receive"),
        (["stages", *DAYS, "--by", "lora", "--rollup"], "the rollup holds model, service and instance"),
        (["stages", *DAYS, "--by", "size"], "--by 'size' is no dimension. Use model, service"),
        (["latency", *DAYS, "--over", "1s"], "--over 1s makes 259,200 lines of this window"),
        (["latency", *DAYS, "--slo", "p99=1s"], "--slo 'p99=1s' is no limit. Write --slo ttft=500ms"),
        (["latency", *DAYS, "--groups", "0"], "Invalid value for '--groups'"),
    ],
)
def test_bad_input_is_one_clear_line(capsys: Capture, arguments: list[str], message: str) -> None:
    """Each mistake gives exit code 2 and one line that says what is wrong and what to do."""
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"tailspan: error: {message}")
    assert found.err.count("\n") == 1
