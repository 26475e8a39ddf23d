"""`tailspan migrate` and `tailspan retention`: what they print, what they change, and their exit codes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import clickhouse_connect
import pytest

from tailspan_collector.migrate_cli import migrate
from tailspan_collector.retention_cli import retention_main
from tailspan_schemas import migrations
from tests.collector.conftest import CollectorFactory
from tests.support.server_process import ServerProcess

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; return what it printed to standard output, or the error if one is expected."""

    def call(command: Callable[[list[str]], int], *words: object, code: int = 0) -> str:
        assert command([str(word) for word in words]) == code, capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.err if code == 2 else captured.out

    return call


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the whole schema."""
    folder = tmp_path_factory.mktemp("data")
    assert migrate(["--data", str(folder), "--apply"]) == 0
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that wants a login."""
    with ServerProcess(tmp_path / "server", login="ann:secret") as server:
        yield server


def test_plan_prints_sql_that_builds_the_schema(tmp_path: Path, run: Run, server: ServerProcess) -> None:
    """The script of --plan, run as it is, leaves nothing to migrate."""
    login = ("--clickhouse", server.url, "--clickhouse-user", "ann", "--clickhouse-password", "secret")
    assert f"{len(migrations.load())} pending" in run(migrate, *login)
    run(migrate, *login, "--check", code=3)
    script = run(migrate, *login, "--plan")
    with_login = server.url.replace("//", "//ann:secret@")
    with clickhouse_connect.get_client(dsn=with_login) as client:
        for statement in script.split(";\n"):
            if statement.strip():
                client.command(statement)
    assert "pending" not in run(migrate, "--clickhouse", with_login)
    assert run(migrate, *login, "--plan") == ""
    run(migrate, *login, "--check")
    assert "secret" not in run(migrate, "--clickhouse", server.url, "--clickhouse-password", "secret2", code=2)


def test_the_cluster_form_is_printed_without_a_database(run: Run) -> None:
    """--plan --all --cluster shows what an administrator would run, and asks nobody."""
    script = run(migrate, "--plan", "--all", "--cluster", "prod", "--clickhouse", "http://127.0.0.1:1")
    assert "create table if not exists tailspan.spans_local on cluster `prod`" in script
    assert "engine = Distributed('prod', 'tailspan', 'spans_local', cityHash64(trace_id))" in script
    assert "no cluster name" in run(migrate, "--plan", "--all", "--cluster", "a b", code=2)


def test_apply_migrates_a_data_folder_once(tmp_path: Path, run: Run) -> None:
    """Files are applied, shown as applied, and not applied again."""
    assert "applied now" in run(migrate, "--data", tmp_path, "--apply")
    assert "applied now" not in run(migrate, "--data", tmp_path, "--apply")
    assert run(migrate, "--data", tmp_path).count(" applied\n") == len(migrations.load())
    assert "made for one server" in run(migrate, "--data", tmp_path, "--cluster", "prod", code=2)


def test_options_that_contradict_are_refused(tmp_path: Path, run: Run) -> None:
    """--apply does not print and --all prints only."""
    assert "--apply is given beside" in run(migrate, "--data", tmp_path, "--apply", "--plan", code=2)
    assert "--all is given without" in run(migrate, "--data", tmp_path, "--all", code=2)


def test_settings_come_from_the_collectors_file(tmp_path: Path, run: Run, server: ServerProcess) -> None:
    """The configuration file of the collector says where ClickHouse is; its other keys do not matter here."""
    config = tmp_path / "collector.toml"
    config.write_text(
        f'clickhouse_url = "{server.url}"\nclickhouse_user = "ann"\nclickhouse_password = "secret"\n'
        'otlp_port = 4317\n[[forward]]\nendpoint = "http://apm:4317"\n'
    )
    assert "applied now" in run(migrate, "--config", config, "--apply")
    assert "kept for ever" in run(retention_main, "--config", config)
    config.write_text("clickhouse_url = ")
    assert "is no TOML" in run(migrate, "--config", config, code=2)


def test_retention_is_shown_set_and_switched_off(tmp_path: Path, run: Run) -> None:
    """What is set is printed with what it was before, listed in every form, and taken away again."""
    run(migrate, "--data", tmp_path, "--apply")
    assert "deleted" not in run(retention_main, "--data", tmp_path)
    ages = ("--spans", "30d", "--rollups", "1y", "--hours", "400d", "--optimizations", "10y")
    text = run(retention_main, "set", "--data", tmp_path, *ages)
    assert "\nspans: deleted after 30 d (was: kept for ever)\n" in f"\n{text}"
    assert "\nstage_minutes: deleted after 365 d (was: kept for ever)\n" in text
    assert "\nstage_hours: deleted after 400 d (was: kept for ever)\n" in text
    assert "\noptimization_records: deleted after 3650 d (was: kept for ever)\n" in f"{text}\n"
    assert "otel_" not in text
    found = {row["table"]: row for row in json.loads(run(retention_main, "--data", tmp_path, "--format", "json"))}
    assert found["spans"]["delete_days"] == 30
    assert found["traces"]["delete_days"] is None
    rows = list(csv.DictReader(io.StringIO(run(retention_main, "--data", tmp_path, "--format", "csv"))))
    assert {row["table"]: row["rule"] for row in rows}["spans"] == "deleted after 30 d"
    text = run(retention_main, "off", "--data", tmp_path, "--spans")
    assert "spans: kept for ever (was: deleted after 30 d)" in text.splitlines()
    hours = run(retention_main, "off", "--data", tmp_path, "--hours")
    assert [line for line in hours.splitlines() if "was:" in line] == [
        "stage_hours: kept for ever (was: deleted after 400 d)"
    ]
    assert "stage_minutes: kept for ever" in run(retention_main, "off", "--data", tmp_path)
    assert "deleted" not in run(retention_main, "--data", tmp_path)


def test_retention_of_a_server_is_set_over_http(tmp_path: Path, run: Run) -> None:
    """The same on a server, whose settings come from variables."""
    with ServerProcess(tmp_path / "open") as server:
        run(migrate, "--clickhouse", server.url, "--apply")
        run(retention_main, "set", "--clickhouse", server.url, "--logs", "2w")
        assert "deleted after 14 d" in run(retention_main, "--clickhouse", server.url)


def test_a_running_collector_is_read_but_not_changed(start_collector: CollectorFactory, run: Run) -> None:
    """While a collector has the folder open, retention is shown through its port; a change says what to do."""
    collector = start_collector()
    assert "kept for ever" in run(retention_main, "--data", collector.data)
    run(migrate, "--data", collector.data, "--check")
    error = run(retention_main, "set", "--data", collector.data, "--spans", "30d", code=2)
    assert f"a collector (process {collector.process.pid}) has the data folder" in error  # type: ignore[union-attr]
    assert "Stop it, run this command, and start it again" in error
    error = run(retention_main, "set", "--clickhouse", collector.url, "--spans", "30d", code=2)
    assert "ClickHouse refused the change" in error


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("set",), "nothing to set"),
        (("set", "--spans", "30h"), "--spans is '30h'. Use whole days"),
        (("set", "--spans", "0d"), "--spans is '0d'"),
        (("set", "--move-after", "7d"), "belong together"),
        (("set", "--spans", "7d", "--move-after", "7d", "--volume", "cold"), "deletes what moves only after 7 d"),
        (("set", "--move-after", "7d", "--volume", "a'b"), "--volume is"),
        (("set", "--move-after", "7d", "--volume", "cold"), "storage policy 'default' of"),
        (("set", "--spans", "7d", "--policy", "none"), "there is no storage policy 'none'"),
        (("--data", "/nowhere"), "there is no tailspan data in /nowhere"),
    ],
)
def test_mistakes_change_nothing(data: Path, run: Run, words: tuple[str, ...], reason: str) -> None:
    """A mistake is one line that says what is allowed, and no table has a TTL after it."""
    placed = words if "--data" in words else (*words, "--data", str(data))
    assert reason in run(retention_main, *placed, code=2)
    assert "deleted" not in run(retention_main, "--data", data)
