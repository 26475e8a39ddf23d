"""Migrations are applied once, in order, and never behind the user's back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailspan.errors import UserError
from tailspan_collector.embedded import Engine
from tailspan_collector.signals import TRACES
from tailspan_schemas import migrations
from tests.schemas.otlp import insert
from tests.support.otlp_messages import request_with_stages


def test_an_empty_database_needs_everything_once(empty_engine: Engine) -> None:
    """All files are pending at first; after applying, all are applied and applying again does nothing."""
    known = migrations.load()
    assert migrations.plan(empty_engine).pending == known
    assert migrations.apply(empty_engine).pending == known
    after = migrations.plan(empty_engine)
    assert after.applied == known
    assert after.pending == ()
    assert migrations.apply(empty_engine).pending == ()
    rows = empty_engine.rows("select count(), uniqExact(version) from tailspan.migrations")
    assert rows == [[str(len(known))] * 2]


def test_an_interrupted_migration_is_completed(empty_engine: Engine) -> None:
    """A run that ended between a file and its record is completed by the next one."""
    known = migrations.load()
    migrations.apply(empty_engine, known[:5])
    empty_engine.command(known[5].sql)
    assert migrations.apply(empty_engine).pending == known[5:]
    assert migrations.plan(empty_engine).pending == ()


def test_an_upgrade_adds_the_tables_for_long_windows_and_leaves_the_rest(empty_engine: Engine) -> None:
    """A database without them gets the hours and the sample, empty; its rows stay, and new spans are in both."""
    known = migrations.load()
    migrations.apply(empty_engine, known[:45])
    insert(empty_engine, TRACES, request_with_stages(100))
    stored = "select sum(cityHash64(*)) from tailspan.{}"
    tables = ("spans", "stage_minutes", "traces")
    before = [empty_engine.rows(stored.format(table)) for table in tables]
    upgrade = [item.name for item in migrations.apply(empty_engine).pending]
    assert upgrade[:4] == ["stage_hours", "stage_hours_mv", "spans_sample", "spans_sample_mv"]
    assert [empty_engine.rows(stored.format(table)) for table in tables] == before
    counts = "select (select sum(span_count) from tailspan.stage_hours), (select count() from tailspan.spans_sample)"
    assert empty_engine.rows(counts) == [["0", "0"]]
    insert(empty_engine, TRACES, request_with_stages(100, "new"))
    chosen = "service = 'new' and sipHash64(trace_id) % 4096 < 256"
    (expected,) = empty_engine.rows(f"select count() from tailspan.spans where {chosen}")
    assert empty_engine.rows(counts) == [["400", *expected]]


def test_a_changed_file_is_refused(empty_engine: Engine) -> None:
    """A file that was edited after it had been applied is an error that names it."""
    known = migrations.load()
    migrations.apply(empty_engine)
    changed = (*known[:3], replace(known[3], sql=known[3].sql + "\n"), *known[4:])
    with pytest.raises(UserError, match=r"0004_spans\.sql was changed"):
        migrations.plan(empty_engine, changed)


def test_a_newer_database_is_refused(empty_engine: Engine) -> None:
    """A database of a newer tailspan is not touched."""
    migrations.apply(empty_engine)
    with pytest.raises(UserError, match="Upgrade tailspan"):
        migrations.apply(empty_engine, migrations.load()[:-1])


def test_numbers_have_no_gaps(tmp_path: Path) -> None:
    """A missing number is found when the files are read."""
    (tmp_path / "0001_a.sql").write_text("select 1")
    (tmp_path / "0003_b.sql").write_text("select 1")
    with pytest.raises(ValueError, match=r"0003_b\.sql: expected number 0002"):
        migrations.load(tmp_path)
