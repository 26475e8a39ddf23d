"""Every reading command over odd data: sensible rows or one clear line.

Each command meets names that do harm and empty tables, and each of its options one other kind of odd data or two.
`TAILSPAN_EDGES=all` tries every command with every kind, which takes minutes.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tailspan.cli import main
from tests.queries.edges import commands, odd_traffic
from tests.queries.edges.conftest import Remembering
from tests.queries.edges.odd_requests import Odd

KINDS = (*odd_traffic.MAKERS, "midnight", "engine_traced", "short_day", "long_day", "ages")
Capture = pytest.CaptureFixture[str]
FINDS = frozenset({"regress", "regress_days"})
"""Commands for which 1 is an answer too."""


def pairs() -> list[tuple[str, str]]:
    """Return which kind meets which command."""
    if os.environ.get("TAILSPAN_EDGES") == "all":
        return [(kind, command) for kind in KINDS for command in commands.COMMANDS]
    harmful = [("hostile", command) for command in commands.FIRST_OF_EACH]
    # The numbers of kinds and commands have no common divisor, so that each kind meets other commands.
    others = [kind for kind in KINDS if kind != "hostile"]
    turns = [(others[turn % len(others)], name) for turn, name in enumerate([*commands.COMMANDS])]
    return list(dict.fromkeys([*KNOWN, *harmful, *turns]))


KNOWN = (
    ("negative", "latency_over"),
    ("heavy", "stages_rollup"),
    ("heavy", "whatif"),
    ("momentary", "tail"),
    ("equal", "different"),
    ("ages", "stages_rollup"),
    ("engines", "gpu"),
    ("engines", "layers"),
    ("engines", "engine"),
    ("overlapping", "tail"),
)
"""Pairs that failed once, or are what a kind is for."""


def run(capsys: Capture, words: list[str], form: str) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it wrote."""
    code = main([*words, "--format", form])
    found = capsys.readouterr()
    return code, found.out, found.err


def check(capsys: Capture, name: str, words: list[str]) -> None:
    """Run a command in its three forms and hold each against what is promised."""
    for form in commands.FORMATS:
        code, out, err = run(capsys, words, form)
        assert code in ((0, 1, 2) if name in FINDS else (0, 2)), (form, code, err)
        commands.check_text(err)
        assert all(line.startswith("tailspan: ") for line in err.splitlines()), err
        assert (code == 2) == err.startswith("tailspan: error: "), (code, err)
        assert out or err, "neither rows nor a line"
        if code == 2:
            assert out == ""
            assert err.count("\n") == 1
        elif form == "json" and out:
            commands.check_json(out)
        elif form == "csv":
            commands.check_csv(out)
        elif form == "table":
            assert max(map(len, out.splitlines()), default=0) <= 100
            commands.check_text(out)


@pytest.mark.parametrize(("kind", "command"), pairs())
def test_odd_data_gives_rows_or_one_line(
    capsys: Capture, ask: Any, full_client: Remembering, odd: dict[str, Odd], kind: str, command: str
) -> None:
    """Whatever the data, a command ends as documented, and what it writes is whole and harmless."""
    ask(full_client)
    item = odd[kind]
    check(capsys, command, commands.arguments(commands.COMMANDS[command], item.window, item.service))


@pytest.mark.parametrize("command", commands.FIRST_OF_EACH)
def test_empty_tables_give_one_line(
    capsys: Capture, ask: Any, empty_client: Remembering, odd: dict[str, Odd], command: str
) -> None:
    """Without any data there is no table and one line that says so."""
    ask(empty_client)
    words = commands.arguments(commands.COMMANDS[command], odd["one"].window)
    check(capsys, command, words)
    code, out, err = run(capsys, words, "table")
    assert (code, out) == (0, "")
    assert 1 <= err.count("\n") <= 2
