"""The Python interface: every command's report, and the examples of docs/API.md about reading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailspan_queries import reports
from tailspan_queries.client import Client
from tests.queries.test_cli import BURSTS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "API.md").read_text(encoding="utf-8")
READING = DOCUMENT.split("\n# The API for reading\n")[1]
EXAMPLES = re.findall(r"^```python\n(.*?)^```", READING, re.DOTALL | re.MULTILINE)
RENDERED = [name.removeprefix("render_") for name in reports.__all__ if name.startswith("render_")]


def test_the_example_of_reports_prints_tables(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs as it stands, against the test's ClickHouse and the window that has requests."""
    _, since, _, until = BURSTS
    example = EXAMPLES[0].replace("http://127.0.0.1:8123", client.url)
    assert example.count('parse_window("2h", "now")') == 1
    exec(example.replace('parse_window("2h", "now")', f'parse_window("{since}", "{until}")'), {})
    printed = capsys.readouterr().out
    assert "tail: " in printed
    assert "prompt tokens" in printed


def test_the_example_of_the_ledger_prints_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs as it stands, and what it prints names each change."""
    exec(EXAMPLES[1], {})
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("queue", "decode", "fused kernel", "2 GiB"))


@pytest.mark.parametrize("name", RENDERED)
def test_what_can_be_rendered_can_be_had_as_json_and_csv(name: str) -> None:
    """Every report has its three forms in the interface."""
    assert {f"{name}_json", f"{name}_csv"} <= set(reports.__all__)


def test_the_document_names_only_what_there_is() -> None:
    """Each function in the table of docs/API.md is exported."""
    table = READING.split("| command | function |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"\b(?:[a-z]+_)+[a-z]+\b", row)}
    fields = {"by", "speedups"}
    assert len(named) > 40
    assert named - fields <= set(reports.__all__)
