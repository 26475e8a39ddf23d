"""`tailspan demo` on the command line: bad input gets one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailspan.cli import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--requests", "0"], "--requests"),
        (["--rate", "fast"], "--rate"),
        (["--seed", "-1"], "--seed"),
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
    assert all(option in text for option in ("--requests", "--rate", "--seed", "--data", "--json", "[default: 100"))
