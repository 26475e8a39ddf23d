"""Texts of a CSV file: a formula becomes text, and everything else stays what it was."""

from __future__ import annotations

import csv
import io

import pytest

from tailspan.spreadsheet import inert
from tailspan_collector.listing import print_rows
from tailspan_queries.console import print_csv

Capture = pytest.CaptureFixture[str]
FORMULAS = ('=cmd|" /C calc"!A0', "+1+1", "-2+3", "@SUM(A1)", " =1", "\n=1", "\uff1d1+1", "-", "+49 30", "--1", "=1")
HARMLESS = ("", "queue", "a=b", "1-2", "-5", "+5", "-1.5e-9", "2026-10-24", "'=1", "(=1)", "[@]")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_has_an_apostrophe_before_it(text: str) -> None:
    """Whatever a spreadsheet could run begins with the sign for text, and the text itself is whole."""
    assert inert(text) == f"'{text}"


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text: str) -> None:
    """Names, dates and plain numbers are as they were."""
    assert inert(text) == text


def test_both_writers_of_csv_use_it(capsys: Capture) -> None:
    """Reports and lists of the collector keep numbers and change formulas."""
    row = {"reason": "=1+1", "code": -5, "share": -0.5, "missing": None}
    print_csv(list(row), [list(row.values())])
    print_rows(tuple(row), [row], "csv")
    reports, lists = (list(csv.reader(io.StringIO(text))) for text in halves(capsys.readouterr().out))
    assert reports == lists == [list(row), ["'=1+1", "-5", "-0.5", ""]]


def halves(text: str) -> tuple[str, str]:
    """Return the first and the second half of the lines."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[: len(lines) // 2]), "".join(lines[len(lines) // 2 :])
