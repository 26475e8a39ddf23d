"""The read-only ClickHouse HTTP interface answers clickhouse-connect and curl, also while spans come in."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from tailspan_collector.guard import HARMLESS_TABLE_FUNCTIONS
from tests.support.collector import RunningCollector, wait_until
from tests.support.otlp_messages import request_with_stages


@pytest.fixture(scope="module")
def filled(shared_collector: RunningCollector) -> RunningCollector:
    """A collector with a few spans."""
    shared_collector.export(request_with_stages(50, "filled"))
    # A rollup's rows may be seen a moment after those of the table that it is filled from.
    rolled_up = "select sum(count) from tailspan.stage_minutes where service = 'filled'"
    assert wait_until(lambda: shared_collector.query(rolled_up)[0][0], lambda count: count >= 200) == 200
    shared_collector.wait_rows(150)
    return shared_collector


def get(url: str, data: bytes | None = None, **headers: str) -> str:
    """Send one request as curl would."""
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as response:
        text: str = response.read().decode()
        return text


def test_curl_ping_get_and_post(filled: RunningCollector) -> None:
    """`/ping`, SQL in the URL, SQL in the body, and a body that continues the URL's SQL work."""
    assert get(f"{filled.url}/ping") == "Ok.\n"
    assert get(f"{filled.url}/") == "Ok.\n"
    assert get(f"{filled.url}/?query=select+1,2") == "1\t2\n"
    assert get(filled.url, b"select 1 as a format JSONEachRow") == '{"a":1}\n'
    assert get(f"{filled.url}/?query=select", b"3") == "3\n"
    assert get(f"{filled.url}/?default_format=CSV", b"select 'x', 1") == '"x",1\n'
    assert get(f"{filled.url}/?param_n=4", b"select {n:UInt8} + 1") == "5\n"
    assert get(f"{filled.url}/?database=tailspan", b"select count() from rejects") == "0\n"


def test_clickhouse_connect_reads(filled: RunningCollector) -> None:
    """The official client works with its defaults: parameters, settings, commands, streams, data frames, Arrow."""
    with clickhouse_connect.get_client(dsn=filled.url, database="tailspan") as client:
        query = "select stage, sum(count) from stage_minutes where service = {s:String} group by stage order by stage"
        rows = client.query(query, parameters={"s": "filled"}, settings={"max_threads": 1}).result_rows
        assert rows == [("decode", 50), ("queue", 50), ("request", 50), ("unattributed", 50)]
        assert client.command("select count() from spans where service = 'filled'") == 150
        with client.query_row_block_stream("select * from spans where service = 'filled'") as blocks:
            assert sum(len(block) for block in blocks) == 150
        assert client.query_arrow("select number from numbers(3)").num_rows == 3
        assert list(client.query_df("select number as n from numbers(3)")["n"]) == [0, 1, 2]
        assert client.query("select toDateTime64('2026-01-02 03:04:05', 3, 'UTC')").first_row[0].hour == 3
        assert len(client.query("select * from numbers(100000)").result_rows) == 100_000
        long_list = ", ".join(map(str, range(20_000)))
        assert client.query(f"select length([{long_list}])").first_row == (20_000,)
        assert client.query("select 1 settings max_threads = 2").first_row == (1,)


def test_a_query_leaves_memory_to_inserts(filled: RunningCollector) -> None:
    """A query gets half of what ClickHouse may take, and less or more where its text says so."""
    of = "(select toUInt64(value) from system.server_settings where name = 'max_server_memory_usage')"
    asked = f"select toUInt64(getSetting('max_memory_usage')), intDiv({of}, 2)"
    given, half = filled.query(asked)[0]
    assert given == half > 0
    assert filled.query(f"{asked} settings max_memory_usage = 12345")[0][0] == 12345


def test_form_encoded_parameters(filled: RunningCollector) -> None:
    """Parameters that are too long for a URL come as form fields."""
    with clickhouse_connect.get_client(dsn=filled.url, form_encode_query_params=True) as client:
        assert client.query("select length({x:String})", parameters={"x": "ä" * 50_000}).first_row == (100_000,)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into tailspan.migrations (version) values (1)",
        "create table default.x (a Int8) engine = Memory",
        "drop table tailspan.spans",
        "alter table tailspan.spans delete where 1",
        "truncate table tailspan.spans",
        "set max_threads = 1",
        "use tailspan",
        "system stop merges",
        "kill query where 1",
        "optimize table tailspan.spans",
        "attach table x",
        "select 1; select 2",
        "select 1 into outfile '/tmp/x'",
        "select 1 INTO/* */OUTFILE '/tmp/x'",
        "select * from file('/etc/passwd')",
        "select * from file('/etc/passwd', LineAsString)",
        "select file('/etc/passwd')",
        "select `file`('/etc/passwd')",
        "select \"file\" /* */ ('/etc/passwd')",
        "with file('/etc/passwd') as x select x",
        "select * from eval('select file(''/etc/passwd'')')",
        "select * from url('http://127.0.0.1:1/', CSV, 'a Int8')",
        "select * from s3('http://127.0.0.1:1/x', CSV, 'a Int8')",
        "select * from remote('127.0.0.1', 'system.one')",
        "select * from executable('id', TSV, 'a String')",
        "select * from python('os')",
        "select * from sqlite('/tmp/x', 'y')",
        "insert into function file('/tmp/x.csv') select 1",
        "explain select * from file('/etc/passwd')",
        "select 1 settings readonly = 0",
        "(select * from file('/etc/passwd'))",
        "-- select\ninsert into tailspan.migrations (version) values (1)",
        "",
    ],
)
def test_what_does_not_read_is_refused(filled: RunningCollector, sql: str) -> None:
    """Writing, reaching outside the database, or several statements is error 164 (62 for no statement)."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(filled.url, sql.encode() or b" ")
    with caught.value as response:
        assert response.headers["X-ClickHouse-Exception-Code"] == ("164" if sql else "62")
        assert response.read().startswith(b"Code: ")


def test_every_table_function_that_reaches_outside_is_refused(filled: RunningCollector) -> None:
    """All table functions of the engine but those known to be harmless are error 164, whatever their case."""
    names = [row[0] for row in filled.query("select name from system.table_functions")]
    outside = [name for name in names if name.lower() not in HARMLESS_TABLE_FUNCTIONS]
    assert {"url", "s3", "python", "executable", "file"} <= set(outside)
    for name in outside:
        for spelled in (name, name.upper(), f"`{name}`"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                get(filled.url, f"select * from {spelled} ('x')".encode())
            with caught.value as response:
                assert response.headers["X-ClickHouse-Exception-Code"] == "164", spelled


@pytest.mark.parametrize(
    "table", ["`/etc/passwd`", "default.`/etc/passwd`", "`file:///etc/passwd`", "system.`/etc/passwd`"]
)
def test_files_are_no_tables(filled: RunningCollector, table: str) -> None:
    """chDB's view of every file as a table is closed."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(filled.url, f"select * from {table}".encode())
    with caught.value as response:
        assert response.headers["X-ClickHouse-Exception-Code"] == "60"
        assert b"root:" not in response.read()


def test_settings_cannot_open_what_is_closed(filled: RunningCollector) -> None:
    """A setting in the URL cannot switch read-only off; an unknown one is ClickHouse's own error."""
    for name, code in (("readonly", "164"), ("allow_ddl", "164"), ("no_such_setting", "115"), ("a;b", "164")):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{filled.url}/?{name}=0&query=select+1")
        with caught.value as response:
            assert response.headers["X-ClickHouse-Exception-Code"] == code


@pytest.mark.parametrize(
    "sql",
    [
        "select ';', 'into outfile', 'it''s', \"dummy\" from system.one -- file(",
        "/* file( */ with 1 as x select x",
        "show tables from tailspan",
        "describe table tailspan.spans",
        "explain select 1",
        "exists table tailspan.spans",
        "(select 1) union all (select 2);",
        "select file from (select 1 as file)",
        "select * from numbers(3) settings max_threads = 1, max_block_size = 10 format JSON",
        "select * from (select 1 settings max_threads = 1) format CSV settings max_threads = 2",
        "select $tag$ ; file( $tag$",
    ],
)
def test_what_reads_is_run(filled: RunningCollector, sql: str) -> None:
    """Statements that read are run, whatever their strings and comments contain."""
    assert get(filled.url, sql.encode())


def test_errors_have_their_codes(filled: RunningCollector) -> None:
    """ClickHouse's errors reach the client with their codes."""
    client = filled.client()
    for sql, code in (("select nope", 47), ("select * from nope", 60), ("selec 1", 164), ("select from where", 62)):
        with pytest.raises(DatabaseError) as caught:
            client.query(sql)
        assert caught.value.code == code


def test_queries_run_while_spans_come_in(shared_collector: RunningCollector) -> None:
    """Clients query table and rollup during ingest; counts only grow and end at what was sent."""
    service = f"busy-{os.getpid()}"

    def send() -> None:
        for _ in range(30):
            shared_collector.export(*(request_with_stages(20, service) for _ in range(3)))

    sender = threading.Thread(target=send)
    sender.start()
    counts: list[int] = []
    while sender.is_alive():
        counts.append(
            int(get(shared_collector.url, f"select count() from tailspan.spans where service = '{service}'".encode()))
        )
        shared_collector.query("select quantilesBFloat16WeightedMerge(0.5)(wall_q) from tailspan.stage_minutes")
    sender.join()
    total = 30 * 3 * 20 * 3
    shared_collector.wait_rows(0)
    query = "select count() from tailspan.spans where service = {s:String}"
    for _ in range(200):
        counts.append(shared_collector.query(query, s=service)[0][0])
        if counts[-1] == total:
            break
        threading.Event().wait(0.05)
    assert counts == sorted(counts)
    assert counts[-1] == total
    assert len(counts) > 3


@pytest.fixture
def json_result(filled: RunningCollector) -> dict[str, object]:
    """A result as Grafana asks for it."""
    result: dict[str, object] = json.loads(get(f"{filled.url}/?default_format=JSON&query=select+1+as+one"))
    return result


def test_json_has_meta_and_data(json_result: dict[str, object]) -> None:
    """The JSON format carries the types of columns beside the rows."""
    assert json_result["meta"] == [{"name": "one", "type": "UInt8"}]
    assert json_result["data"] == [{"one": 1}]
