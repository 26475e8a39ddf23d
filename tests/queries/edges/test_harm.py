"""Names and values that would harm a terminal, a file or a ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tailspan.cli import main
from tailspan_queries.client import connect
from tailspan_queries.optimizations_store import read, wait_seen
from tests.queries.edges import commands
from tests.queries.edges.conftest import Remembering
from tests.queries.edges.odd_requests import HOSTILE, TENANT, Odd
from tests.support.collector import RunningCollector, wait_until

Capture = pytest.CaptureFixture[str]


def test_json_has_what_tables_leave_out(answer: Any) -> None:
    """In JSON every value is as it was sent, controls escaped."""
    report = answer("hostile", "stages", "--by", f"attr:{TENANT}", "--groups", "50")
    assert {row["key"] for row in report["rows"]} == set(HOSTILE)


@pytest.mark.parametrize("kind", ["hostile", "negative", "overlapping", "engines", "ages", "stageless"])
def test_traces_and_exports_are_whole(
    capsys: Capture, ask: Any, full_client: Remembering, answer: Any, odd: dict[str, Odd], kind: str
) -> None:
    """A waterfall of odd spans fits the terminal and does no harm, and an export of them is strict JSON."""
    ask(full_client)
    item = odd[kind]
    slowest = answer(kind, "slowest", "-n", "2")["requests"]
    for row in slowest:
        assert main(["trace", row["trace_id"]]) == 0
        found = capsys.readouterr().out
        commands.check_text(found)
        assert max(map(len, found.splitlines())) <= 100
        assert main(["trace", row["trace_id"], "--format", "json"]) == 0
        commands.check_json(capsys.readouterr().out)
        assert main(["trace", row["trace_id"], "--format", "csv"]) == 0
        commands.check_csv(capsys.readouterr().out)
    assert main(commands.arguments(["export", "--perfetto", "-o", "-"], item.window, item.service)) == 0
    found = capsys.readouterr()
    json.loads(found.out, parse_constant=commands.no_constant)
    commands.check_text(found.err)


def test_a_ledger_takes_any_name(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, store: RunningCollector, odd: dict[str, Odd], tmp_path: Any
) -> None:
    """Names that do harm are recorded, listed, reported and removed without doing any."""
    monkeypatch.setenv("TAILSPAN_CLICKHOUSE_URL", store.url)
    monkeypatch.setenv("COLUMNS", "100")
    name = HOSTILE[0] + HOSTILE[1] + HOSTILE[3] + HOSTILE[4]
    window = odd["equal"].window
    middle = (window.since_ns + window.until_ns) // 2
    sides = [commands.between(window.since_ns, middle), commands.between(middle, window.until_ns)]
    endpoint = ["--otlp", store.otlp_endpoint]
    add = ["optimizations", "add", "--stage", "decode", "--before", sides[0], "--after", sides[1], "--cost", name]
    claims = tmp_path / "claims.csv"
    claims.write_text("name,stage,before_ms,after_ms\nzero,queue,0,0\n[red]x[/],decode,5,1\n", encoding="utf-8")
    for words in ([*add, "--name", name], ["optimizations", "import", str(claims), "--source", HOSTILE[1]]):
        assert main([*words, *endpoint]) == 0, capsys.readouterr().err
    commands.check_text(capsys.readouterr().out)
    client = connect(store.url)
    try:
        assert wait_until(lambda: len(read(client)), lambda entries: entries >= 3) == 3
        [entry] = [item for item in read(client) if item.name == name]
        for words in (["list"], ["report"]):
            for form, check in zip(
                commands.FORMATS, (commands.check_text, commands.check_json, commands.check_csv), strict=True
            ):
                assert main(["optimizations", *words, "--format", form]) == 0
                check(capsys.readouterr().out)
        assert main(["optimizations", "remove", entry.id, *endpoint]) == 0
        commands.check_text(capsys.readouterr().out)
        assert wait_seen(client, [item for item in read(client, removed=True) if item.id == entry.id])
    finally:
        client.close()


def test_an_error_that_quotes_data_does_no_harm() -> None:
    """What a user error quotes reaches the terminal without control characters, in one line."""
    found = subprocess.run(
        [sys.executable, "-m", "tailspan", "stages", "--since", "\x1b[31m\nred\x9b"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    commands.check_text(found.stderr)
