"""`tailspan --help` and the help of each command: complete, and its examples can be typed."""

from __future__ import annotations

import shlex

import pytest

from tailspan import command_help
from tailspan.cli import COMMANDS, main

Capture = pytest.CaptureFixture[str]
EXAMPLES = [example for examples in command_help.EXAMPLES.values() for example in examples]


def test_every_command_stands_under_one_heading() -> None:
    """The overview has each command of the table once, and no other."""
    listed = [name for names in command_help.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)


def test_the_overview_fits_a_terminal(capsys: Capture) -> None:
    """No line is longer than 100 columns, and the headings are there."""
    assert main([]) == 0
    found = capsys.readouterr().out
    assert max(map(len, found.splitlines())) <= 100
    assert all(f"\n{title}:\n" in found for title in command_help.GROUPS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_typed(capsys: Capture, example: str) -> None:
    """The command takes every option of the example, and its help shows it to the letter, with the exit codes."""
    program, *words = shlex.split(example)
    assert program == "tailspan"
    assert main([*words, "--help"]) == 0
    found = capsys.readouterr().out
    assert example in found
    assert "Exit codes:" in found


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tial"], "unknown command 'tial'. Did you mean tail? `tailspan --help` lists all\n"),
        (["optimizations", "ad"], "No such command 'ad'. Did you mean 'add'? See: tailspan optimizations --help\n"),
        (["optimizations", "add"], "Missing option '--name'. See: tailspan optimizations add --help\n"),
    ],
)
def test_a_typo_is_one_line_with_a_guess(capsys: Capture, words: list[str], line: str) -> None:
    """The line names what is wrong, and the command whose help says more."""
    assert main(words) == 2
    assert capsys.readouterr().err == f"tailspan: error: {line}"


def test_a_group_without_a_command_shows_its_commands(capsys: Capture) -> None:
    """`tailspan optimizations` alone is a question, not a mistake."""
    assert main(["optimizations"]) == 0
    assert "\n  add     Record a change" in capsys.readouterr().out
