"""The SQL that docs/CLICKHOUSE.md asks administrators to run is SQL, and names only tables that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailspan_collector.embedded import Engine

DOCUMENT = Path(__file__).parents[2] / "docs" / "CLICKHOUSE.md"
BLOCKS = re.findall(r"^```sql\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
STATEMENTS = [text.strip() for block in BLOCKS for text in block.split(";") if text.strip()]


def parses(engine: Engine, sql: str) -> bool:
    """Whether ClickHouse's parser takes a statement."""
    escaped = sql.replace("\\", "\\\\").replace("'", "\\'")
    return engine.rows(f"select isNotNull(formatQueryOrNull('{escaped}'))") == [["1"]]


def test_the_parser_can_refuse(engine: Engine) -> None:
    """The check below can fail."""
    assert not parses(engine, "grant insert an tailspan.otlp_traces to x")


@pytest.mark.parametrize("sql", STATEMENTS)
def test_every_statement_parses(engine: Engine, sql: str) -> None:
    """Users, profiles and grants are statements that ClickHouse knows, on a cluster too."""
    assert parses(engine, sql)


def test_three_users_with_what_they_need(engine: Engine) -> None:
    """The collector may insert into what takes requests and into nothing else; the reader may only read."""
    tables = {row[0] for row in engine.rows("select name from system.tables where database = 'tailspan'")}
    rights: dict[str, set[tuple[str, str]]] = {}
    for sql in STATEMENTS:
        if match := re.fullmatch(r"grant ([\w, ]+) on ([\w.*]+) to (\w+)", sql):
            rights.setdefault(match[3], set()).update((right, match[2]) for right in match[1].split(", "))
    assert set(rights) == {"tailspan_migrate", "tailspan_collector", "tailspan_reader"}
    assert rights["tailspan_reader"] == {("select", "tailspan.*")}
    inserts = {table for right, table in rights["tailspan_collector"] if right == "insert"}
    entries = {f"tailspan.{table}" for table in tables if table.startswith("otlp_")}
    assert inserts == {*entries, "tailspan.rejects"}
    for granted in rights.values():
        named = {table.removeprefix("tailspan.") for _, table in granted if table.startswith("tailspan.")} - {"*"}
        assert named <= tables
