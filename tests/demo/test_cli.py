"""`tailspan demo` on the command line: bad input gets one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailspan.cli import main
from tailspan_queries.demo import cli
from tailspan_queries.demo.processes import ProgramError
from tailspan_queries.demo.progress import Progress
from tailspan_queries.demo.session import DemoResult, Options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--requests", "0"], "--requests"),
        (["--rate", "fast"], "--rate"),
        (["--seed", "-1"], "--seed"),
        (["--engine", "tgi"], "--engine"),
        (["--colour"], "--colour"),
        (["now"], "now"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """Wrong options end with code 2, one line that names them, and no traceback."""
    assert main(["demo", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tailspan: error: ")
    assert error.count("\n") == 1
    assert words in error


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the way of the data folder is reported before anything is started."""
    (tmp_path / "file").write_text("")
    assert main(["demo", "--data", str(tmp_path / "file" / "data")]) == 2
    assert "--data or TAILSPAN_DATA" in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """The help lists the options with their defaults."""
    assert main(["demo", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(
        option in text
        for option in (
            "--requests",
            "--rate",
            "--seed",
            "--data",
            "--engine [transformers|vllm]",
            "--json",
            "[default: 100",
        )
    )


def test_a_failure_shows_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that failed costs exit code 1, one line that says what, and some lines of its log."""

    def fail(_options: Options, _progress: Progress) -> DemoResult:
        raise ProgramError("the model server ended", [f"line {number}" for number in range(99)])

    monkeypatch.setattr(cli, "run_demo", fail)
    assert main(["demo", "--data", str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tailspan: failed: the model server ended"
    assert lines[-1] == "  | line 98"
    assert len(lines) == 1 + cli.LOG_LINES
