"""Retention: nothing is deleted until somebody says so, then whole days, and it can be switched off again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tailspan_collector.embedded import Engine
from tailspan_schemas import retention
from tailspan_schemas.retention import Kept, Rule
from tests.support.new_database import make_database

TIERS = """<clickhouse><storage_configuration><disks><cold><path>{folder}/cold/</path></cold></disks>
<policies><tiered><volumes><default><disk>default</disk></default><cold><disk>cold</disk></cold></volumes></tiered></policies>
</storage_configuration></clickhouse>"""
INSERT = "insert into tailspan.spans (trace_id, start) select toFixedString('a', 16), now64(9) - toIntervalDay({days})"
OLD = "select count() from tailspan.spans where start < now() - toIntervalDay(20)"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    """A database with the whole schema, on a server with two tiers of storage."""
    (tmp_path / "tiers.xml").write_text(TIERS.format(folder=tmp_path))
    make_database(tmp_path / "db")
    with Engine(Path(f"{tmp_path / 'db'}?config-file={tmp_path / 'tiers.xml'}")) as engine:
        yield engine


def kept(database: Engine, table: str = "spans") -> Kept:
    """Return what is known of one table."""
    return next(item for item in retention.show(database) if item.table == table)


def change(database: Engine, table: str, rule: Rule, policy: str = "") -> list[str]:
    """Give a table a rule."""
    return retention.change(database, [(kept(database, table), rule)], policy)


def test_no_table_has_a_ttl_until_it_is_set(database: Engine) -> None:
    """The shipped schema deletes nothing, and every table that holds data is one whose retention can be set."""
    rows = database.rows("select name, engine_full from system.tables where database = 'tailspan'")
    assert not [name for name, engine in rows if " TTL " in engine]
    stored = {name for name, engine in rows if "MergeTree" in engine} - {"migrations"}
    found = retention.show(database)
    assert {item.table for item in found} == stored
    assert {item.rule for item in found} == {Rule()}


def test_old_rows_go_and_young_ones_stay(database: Engine) -> None:
    """After 30 days of 40-day-old and 10-day-old spans the former go; a span of the far future stays."""
    for days in (0, 10, 40):
        database.command(INSERT.format(days=days))
    database.command(INSERT.format(days=0).replace("now64(9)", "toDateTime64('2262-04-11 20:00:00', 9, 'UTC')"))
    assert kept(database).rows == 4
    change(database, "spans", Rule(delete_days=30))
    assert kept(database).rule == Rule(delete_days=30)
    database.command("optimize table tailspan.spans final")
    assert database.rows("select count() from tailspan.spans") == [["3"]]
    assert database.rows(OLD) == [["0"]]


def test_old_rows_of_the_sample_and_of_the_hours_go_too(database: Engine) -> None:
    """The stored sample and the rollup by the hour lose the days that are too old, and no others."""
    for days in (0, 10, 100):
        database.command(
            "insert into tailspan.spans (trace_id, role, start) "
            f"select toFixedString(toString(number), 16), 'request', now64(9) - toIntervalDay({days}) from numbers(60)"
        )
    sampled = int(database.rows("select countIf(sipHash64(trace_id) % 4096 < 256) from tailspan.spans")[0][0])
    hours = "select uniqExact(hour), sum(span_count) from tailspan.stage_hours where stage = 'request'"
    assert sampled
    assert kept(database, "spans_sample").rows == sampled
    assert database.rows(hours) == [["3", "180"]]
    for table, days in (("spans_sample", 5), ("stage_hours", 20)):
        change(database, table, Rule(delete_days=days))
        database.command(f"optimize table tailspan.{table} final")
    assert 3 * kept(database, "spans_sample").rows == sampled
    assert database.rows(hours) == [["2", "120"]]


def test_off_keeps_everything_again(database: Engine) -> None:
    """Switched off, no TTL is left, old rows stay, and switching off twice is no error."""
    change(database, "spans", Rule(delete_days=30))
    change(database, "spans", Rule())
    database.command(INSERT.format(days=40))
    database.command("optimize table tailspan.spans final")
    assert kept(database).rule == Rule()
    assert database.rows(OLD) == [["1"]]
    assert change(database, "spans", Rule()) == []


def test_every_table_takes_a_rule_and_shows_it(database: Engine) -> None:
    """ClickHouse takes the statements for every table, and what it prints is read back as the same rule."""
    for item in retention.show(database):
        change(database, item.table, Rule(delete_days=400))
    assert {item.rule for item in retention.show(database)} == {Rule(delete_days=400)}


def test_older_rows_move_to_the_cold_tier(database: Engine) -> None:
    """With a policy of two volumes, rows older than a week move to the second and are still read."""
    database.command(INSERT.format(days=0))
    database.command(INSERT.format(days=10))
    assert retention.volumes(database)["tiered"] == ["default", "cold"]
    rule = Rule(delete_days=30, move_days=7, volume="cold")
    change(database, "spans", rule, policy="tiered")
    assert (kept(database).rule, kept(database).policy) == (rule, "tiered")
    database.command(INSERT.format(days=11))
    disks = database.rows(
        "select partition < toString(today() - 7), any(disk_name) from system.parts "
        "where active and table = 'spans' and partition = toString(today() - 11) group by 1"
    )
    assert disks == [["1", "cold"]]
    assert database.rows("select count() from tailspan.spans") == [["3"]]


def test_a_ttl_of_somebody_else_is_shown_as_it_is(database: Engine) -> None:
    """A TTL that is none of ours is not misread, and it can be taken away."""
    database.command("alter table tailspan.spans modify ttl toDate(start) + interval 1 month delete where role = ''")
    rule = kept(database).rule
    assert rule.delete_days is None
    assert "toIntervalMonth(1)" in rule.other
    change(database, "spans", Rule())
    assert kept(database).rule == Rule()


def test_in_a_cluster_the_local_tables_are_altered() -> None:
    """The statements name the table of each shard and the cluster."""
    item = Kept("spans", "spans_local", "start", Rule(), 0, 0, "", "default")
    first, second = retention.alter(item, Rule(delete_days=30), cluster="prod")
    assert first.startswith("alter table tailspan.spans_local on cluster `prod` modify setting ttl_only_drop_parts")
    assert second == (
        "alter table tailspan.spans_local on cluster `prod` modify ttl toDate32(start) + toIntervalDay(30) delete"
    )
    set_before = replace(item, rule=Rule(delete_days=30))
    off = "alter table tailspan.spans_local on cluster `prod` remove ttl"
    assert retention.alter(set_before, Rule(), "prod") == [off]
