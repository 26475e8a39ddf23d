"""docs/COLLECTOR.md: its settings are those of the code, and the tests that it names exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from tailspan_collector.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/COLLECTOR.md").read_text()


def section(title: str) -> str:
    """Return the text of a section, less its heading."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_table_of_settings_is_complete() -> None:
    """Every setting has a row, in order, with the default that it has."""
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? *\|", section("Settings"), re.MULTILINE)
    stated = dict(rows)
    actual = {}
    for item in fields(Settings):
        shown = "" if item.default in (None, "") else str(item.default)
        actual[item.name] = shown.removesuffix(".0")
    assert stated == actual
    assert list(stated) == list(actual)


def test_every_named_test_exists() -> None:
    """A failure that is said to be impossible is so by a test that is there."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
    assert len(named) > 20
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert not missing


def test_every_complaint_has_a_test() -> None:
    """No row of the table of failures is a promise alone."""
    rows = section("What went wrong elsewhere, and what happens here").strip().splitlines()
    bodies = [row for row in rows if row.startswith("| ")][1:]
    assert len(bodies) >= 17
    assert not [row for row in bodies if "::test_" not in row]


def test_ports_are_the_defaults() -> None:
    """The table of ports is that of the code."""
    ports = list(map(int, re.findall(r"^\| (\d+) \|", section("Quick start"), re.MULTILINE)))
    defaults = Settings()
    assert ports == [defaults.otlp_port, defaults.otlp_http_port, defaults.http_port, defaults.admin_port]


def test_nothing_is_deleted_by_default() -> None:
    """No table of the schema comes with a TTL: data go only when the user sets a retention."""
    files = sorted((ROOT / "schemas/tailspan_schemas/sql").glob("*.sql"))
    assert len(files) > 10
    assert not [path.name for path in files if re.search(r"(?im)^\s*ttl\b", path.read_text())]
