"""The cluster form of the schema: every statement is one that ClickHouse knows, and what one node can run works."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailspan.errors import UserError
from tailspan_collector.embedded import EmbeddedSink, Engine
from tailspan_collector.framing import write_varint
from tailspan_collector.signals import TRACES
from tailspan_schemas import migrations
from tailspan_schemas.cluster import cluster_form
from tailspan_schemas.statements import UnknownStatement
from tests.support.otlp_messages import request_with_stages

ONE_SHARD = """<clickhouse><tcp_port>9000</tcp_port>
<remote_servers><one><shard><internal_replication>true</internal_replication>
<replica><host>localhost</host><port>9000</port></replica></shard></one></remote_servers></clickhouse>"""
TEST_KEEPER = """<clickhouse><zookeeper><implementation>testkeeper</implementation></zookeeper>
<macros><shard>1</shard><replica>r1</replica></macros></clickhouse>"""
CREATE_ALL = """
import sys, os, pathlib, chdb
handle = chdb.connect(sys.argv[1])
try:
    for statement in pathlib.Path(sys.argv[2]).read_text().split("\\0"):
        handle.query(statement)
    print(handle.query("select count() from system.tables where database = 'tailspan'", "TSV"), flush=True)
except Exception as error:
    print(error, flush=True)
os._exit(0)  # a replicated table outside a server never finishes to close
"""


def all_statements(cluster: str = "one") -> list[str]:
    """Return the statements of the whole schema on a cluster, in order."""
    return [sql for form in migrations.statements(migrations.load(), cluster).values() for sql in form]


def without_other_nodes(sql: str, *, replicated: bool) -> str:
    """Return a statement as one node runs it: without the queue of ON CLUSTER, and without Keeper if asked."""
    sql = sql.replace(" on cluster `one`", "")
    if replicated:
        return sql
    sql = re.sub(r"replicated_deduplication_window_seconds = \d+, ", "non_", sql)
    return re.sub(r"Replicated(\w*MergeTree)\([^)]*\)", r"\1", sql)


@pytest.fixture
def one_shard(tmp_path: Path) -> Iterator[Engine]:
    """The cluster form on a chDB that is a cluster of one shard, so that Distributed tables write to itself."""
    (tmp_path / "one.xml").write_text(ONE_SHARD)
    with Engine(Path(f"{tmp_path / 'db'}?config-file={tmp_path / 'one.xml'}")) as engine:
        for sql in all_statements():
            engine.command(without_other_nodes(sql, replicated=False))
        yield engine


def test_every_statement_parses(empty_engine: Engine) -> None:
    """ClickHouse's own parser takes every statement of the cluster form, and each names the cluster."""
    for sql in all_statements("prod-1"):
        assert empty_engine.rows(f"explain ast {sql}"), sql
        assert sql.count("on cluster `prod-1`") == 1


def test_stored_tables_are_replicated_and_sharded_by_trace() -> None:
    """A stored table becomes a replicated one and a Distributed one over it; a Null table stays what it is."""
    text = "\n".join(all_statements("prod"))
    assert "Distributed('prod', 'tailspan', 'spans_local', cityHash64(trace_id))" in text
    assert "Distributed('prod', 'tailspan', 'traces_local', cityHash64(trace_id))" in text
    assert "Distributed('prod', 'tailspan', 'spans_sample_local', cityHash64(trace_id))" in text
    assert "Distributed('prod', 'tailspan', 'stage_hours_local', cityHash64(stage, service, model, hour))" in text
    assert "Distributed('prod', 'tailspan', 'rejects_local', cityHash64(batch))" in text
    path = "'/clickhouse/tables/prod/{database}/{table}/{shard}', '{replica}'"
    assert f"engine = ReplicatedAggregatingMergeTree({path})" in text
    assert "otlp_traces_local" not in text
    assert not re.search(r"engine = \w*(?<!Replicated)(?<!Aggregating)MergeTree", text)
    assert "non_replicated" not in text


def test_views_work_where_the_rows_lie() -> None:
    """The view of what enters spreads rows over the shards; a view of stored rows stays on their shard."""
    views = {name: sql for sql in all_statements() for name in re.findall(r"view if not exists tailspan\.(\w+)", sql)}
    assert "to tailspan.spans as" in views["spans_mv"]
    assert "from tailspan.otlp_traces" in views["spans_mv"]
    for name in ("stage_minutes", "traces", "spans_sample"):
        assert f"to tailspan.{name}_local as" in views[f"{name}_mv"]
        assert "from tailspan.spans_local as spans" in views[f"{name}_mv"]
    assert "to tailspan.stage_hours_local as" in views["stage_hours_mv"]
    assert "from tailspan.stage_minutes_local as stage_minutes" in views["stage_hours_mv"]
    assert "from tailspan.spans\n" in views["requests"]


def test_views_behind_a_view_of_stored_rows_stay_on_the_shard() -> None:
    """A Null table that gets rows from a shard passes them on within it; one that gets both kinds is refused."""
    stored = "create table tailspan.{} (trace_id Int8) engine = MergeTree order by trace_id"
    through = "create table tailspan.{} (trace_id Int8) engine = Null"
    view = "create materialized view tailspan.{}_mv to tailspan.{} as select trace_id from tailspan.{}"
    schema = [through.format("entry"), stored.format("a"), through.format("between"), stored.format("b")]
    views = [view.format("a", "a", "entry"), view.format("between", "between", "a"), view.format("b", "b", "between")]
    *_, first, second, third = (form[0] for form in cluster_form([*schema, *views], "c"))
    assert first.endswith("to tailspan.a as select trace_id from tailspan.entry")
    assert second.endswith("to tailspan.between as select trace_id from tailspan.a_local as a")
    assert third.endswith("to tailspan.b_local as select trace_id from tailspan.between")
    with pytest.raises(UnknownStatement, match="both before and after"):
        cluster_form([*schema, *views, view.format("x", "between", "entry")], "c")


def test_a_repeated_insert_is_stored_once_in_every_table(one_shard: Engine) -> None:
    """Through Null table, view, Distributed and local table into the rollups: once for each token, twice for two."""
    sink = EmbeddedSink(one_shard)
    payload = request_with_stages(150)
    body = write_varint(len(payload)) + payload
    one_shard.command("set distributed_foreground_insert = 1")
    for token in ("a-1", "a-1", "a-1", "a-2", "a-2"):
        sink.insert(TRACES, body, token)
    assert one_shard.rows("select count() from tailspan.spans") == [["900"]]
    for rollup in ("stage_minutes", "stage_hours"):
        assert one_shard.rows(f"select sum(span_count) from tailspan.{rollup}") == [["1200"]]
    assert one_shard.rows("select sum(span_count), uniqExact(trace_id) from tailspan.traces") == [["900", "150"]]
    assert one_shard.rows("select count() from tailspan.requests") == [["300"]]
    sample = "select count(), sum(whole_weight), 2 * uniqExact(span_id) from tailspan."
    chosen = one_shard.rows(f"{sample}spans where sipHash64(trace_id) % 4096 < 256")
    assert one_shard.rows(f"{sample}spans_sample") == chosen
    assert len(set(chosen[0])) == 1


def test_the_mode_of_a_database_does_not_change(one_shard: Engine) -> None:
    """A database made for a cluster is refused without its name, and with another one."""
    migrations.plan(one_shard, cluster="one")
    one_shard.command("insert into tailspan.migrations select 1, 'database', '', now64(3)")
    first = migrations.load()[0]
    one_shard.command("truncate table tailspan.migrations")
    one_shard.command(
        f"insert into tailspan.migrations select 1, '{first.name}', '{first.checksum}', now64(3)"  # one is enough
    )
    assert migrations.plan(one_shard, cluster="one").applied == (first,)
    for other in ("", "two"):
        with pytest.raises(UserError, match="made for the cluster 'one'"):
            migrations.plan(one_shard, cluster=other)


def test_one_server_is_no_cluster(empty_engine: Engine) -> None:
    """A database made for one server is not taken for a cluster."""
    migrations.apply(empty_engine)
    with pytest.raises(UserError, match="made for one server"):
        migrations.plan(empty_engine, cluster="one")


def test_replicated_tables_are_created(tmp_path: Path) -> None:
    """With Keeper's stand-in for tests, ClickHouse creates every table of the cluster form, replicated ones too."""
    config = tmp_path / "keeper.xml"
    config.write_text(TEST_KEEPER.replace("</clickhouse>", ONE_SHARD.removeprefix("<clickhouse>")))
    statements = tmp_path / "all.sql"
    statements.write_text("\0".join(without_other_nodes(sql, replicated=True) for sql in all_statements()))
    words = [sys.executable, "-c", CREATE_ALL, f"{tmp_path / 'db'}?config-file={config}", str(statements)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == str(sum(sql.lstrip().startswith("create") for sql in all_statements()) - 1)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("alter table tailspan.spans add column x Int8", "no cluster form is known for: alter table"),
        ("create dictionary tailspan.d (x Int8) primary key x", "no cluster form is known"),
        ("create table tailspan.x (a Int8) engine = Log", "engine Log, which has no cluster form"),
        ("create table tailspan.x (a Int8) engine = MergeTree order by tuple()", "nothing to shard by"),
        ("create table tailspan.x as tailspan.y", "no list of columns"),
        ("create table other.x (a Int8) engine = Null", "expected tailspan.NAME"),
        ("create table tailspan.x on cluster c (a Int8) engine = Null", "names a cluster already"),
        ("create view tailspan.x as select 1; drop table tailspan.y", "several statements"),
        ("create materialized view tailspan.x engine = Log as select 1", "no target table"),
        (
            "create materialized view tailspan.x to tailspan.y as select 1 from tailspan.z",
            "uses z, which is no shipped table",
        ),
    ],
)
def test_an_unknown_form_fails_loudly(sql: str, reason: str) -> None:
    """A statement that is not understood is an error that names it, never a table that lies on one node."""
    with pytest.raises(UnknownStatement, match=reason):
        cluster_form([sql], "one")


def test_a_view_of_two_tables_fails_loudly() -> None:
    """A materialized view that joins cannot be exact on a shard, so it is refused."""
    table = "create table tailspan.{} (trace_id Int8) engine = MergeTree order by trace_id"
    view = "create materialized view tailspan.v to tailspan.a as select 1 from tailspan.a join tailspan.b using x"
    with pytest.raises(UnknownStatement, match="does not read exactly one table"):
        cluster_form([table.format("a"), table.format("b"), view], "one")


def test_a_cluster_name_is_no_sql() -> None:
    """A cluster name with quotes or spaces is refused before anything runs."""
    with pytest.raises(UserError, match="no cluster name"):
        cluster_form(["create database tailspan"], "a` sync; drop table x")


def test_engine_arguments_and_sorting_keys_survive() -> None:
    """Arguments of an engine follow those of replication; a bracketed sorting key becomes the hash's arguments."""
    sql = "create table tailspan.x (a Int8, b Int8) engine = ReplacingMergeTree(b) order by (a, f(b)) settings y = 1"
    local, distributed = cluster_form([sql], "c")[0]
    assert "ReplicatedReplacingMergeTree('/clickhouse/tables/c/{database}/{table}/{shard}', '{replica}', b)" in local
    assert "'x_local', cityHash64(a, f(b)))" in distributed
