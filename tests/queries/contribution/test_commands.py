"""`tailspan tail`, `different` and `fairness` as a user calls them: formats, exit codes and error lines."""

import csv
import io
import json

import pytest

from tailspan.cli import main
from tailspan_queries import catalog
from tests.queries.printed import same_as_snapshot

PLANTED = ["--since", "2026-11-29T12:00Z", "--until", "2026-11-29T13:00Z"]
NOTHING = ["--since", "2026-11-29T13:00Z", "--until", "2026-11-29T14:00Z"]
STARVED = ["--since", "2026-11-29T15:00Z", "--until", "2026-11-29T16:00Z"]
OVERLAPPING = ["--since", "2026-11-29T17:00Z", "--until", "2026-11-29T18:00Z"]
EMPTY = ["--since", "2026-11-29T10:00Z", "--until", "2026-11-29T11:00Z"]
COMMANDS = ("tail", "different", "fairness")
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("commands_ask_here")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tail.txt", ["tail", *PLANTED]),
        ("tail_by.txt", ["tail", *PLANTED, "--by", "instance", "-n", "2", "--quantile", "0.95"]),
        ("tail_overlapping.txt", ["tail", *OVERLAPPING]),
        ("different.txt", ["different", *PLANTED]),
        ("different_nothing.txt", ["different", *NOTHING, "--slowest", "2%"]),
        ("fairness.txt", ["fairness", *STARVED]),
        ("fairness_even.txt", ["fairness", *PLANTED, "--by", "attr:app.tenant", "-n", "0"]),
    ],
)
def test_output_is_as_documented(capsys: Capture, name: str, arguments: list[str]) -> None:
    """Each command prints what its snapshot holds, nothing to standard error, no colour, at most 100 columns."""
    assert main(arguments) == 0
    found = capsys.readouterr()
    assert found.err == ""
    assert "\x1b" not in found.out
    assert max(map(len, found.out.splitlines())) <= 100
    same_as_snapshot(name, found.out)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_tables_fit_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> None:
    """No line is longer than the terminal is wide, and nothing is cut with an ellipsis."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([command, *PLANTED]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert width < 80 or "…" not in text


@pytest.mark.parametrize(("command", "query"), [("tail", "tail_by"), ("different", ""), ("fairness", "fairness")])
def test_json_and_csv_hold_the_same_numbers(capsys: Capture, command: str, query: str) -> None:
    """Both forms parse, agree, and name the columns of the query."""
    assert main([command, *STARVED, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main([command, *STARVED, "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    rows = {
        "tail": lambda: document["rows"],
        "different": lambda: document["findings"],
        "fairness": lambda: [document["everyone"], *document["classes"]],
    }[command]()
    assert len(rows) == len(lines) > 0
    for row, line in zip(rows, lines, strict=True):
        for name, value in row.items():
            if isinstance(value, float):
                assert float(line[name]) == pytest.approx(value)
    names = [column.name for column in catalog.load(query).columns] if query else []
    assert [name for name in names if not name.endswith("_beyond")] == [name for name in names if name in lines[0]]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_window_is_one_line(capsys: Capture, command: str) -> None:
    """Without requests there is one line on standard error that says what there is, no table, and exit code 0."""
    assert main([command, *EMPTY]) == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert len(found.err.splitlines()) == 1
    assert found.err.startswith("tailspan: no requests between 2026-11-29 10:00:00")
    assert main([command, *EMPTY, "--format", "json"]) == 0
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["different", "--slowest", "fast"], "--slowest 'fast' is no percentage of requests. Write 1%"),
        (["different", "--slowest", "0"], "--slowest '0' is no percentage"),
        (["different", "--slowest", "nan%"], "--slowest 'nan%' is no percentage"),
        (["different", "--slowest", "51%"], "--slowest '51%' is no percentage"),
        (["tail", "--quantile", "1"], "Invalid value for '--quantile'"),
        (["fairness", "--times", "0.5"], "Invalid value for '--times'"),
        (["fairness", "--baseline", "2h"], "--baseline '2h' is not of the form FROM..TO"),
        (["fairness", "--baseline", "2h..now"], "the baseline overlaps the window"),
    ],
)
def test_wrong_input_is_one_line(capsys: Capture, arguments: list[str], line: str) -> None:
    """Bad input ends with exit code 2 and one line that says what to do."""
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"tailspan: error: {line}")
    assert len(found.err.splitlines()) == 1
