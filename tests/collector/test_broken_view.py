"""A rollup that fails after its table has taken the rows: nothing is divided, so nothing is stored twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailspan_collector.embedded import EmbeddedSink, Engine
from tailspan_collector.errors import InsertError, TransientError
from tailspan_collector.metrics import Metrics
from tailspan_collector.server import Server
from tailspan_collector.server_sink import ServerSink
from tailspan_collector.signals import TRACES
from tailspan_collector.writer import Writer
from tailspan_schemas import migrations
from tests.support.new_database import make_database
from tests.support.otlp_messages import framed, request_with_stages
from tests.support.server_process import ServerProcess
from tests.support.spools import open_spool

FAULTS = {
    "an error without a known code": "throwIf((select count() from tailspan.mended) = 0, 'broken')",
    "out of memory": "if((select count() from tailspan.mended) > 0, 1, length(range(400000000)) * 8 + throwIf(1, 'x'))",
}


def break_a_view(command: Callable[[str], object], fault: str) -> None:
    """Put a view behind `spans` that fails until table `mended` has a row."""
    command("create table tailspan.mended (x UInt8) engine = Memory")
    command(
        "create table tailspan.behind (spans UInt64) engine = MergeTree order by spans "
        "settings non_replicated_deduplication_window = 100"
    )
    command(
        f"create materialized view tailspan.behind_mv to tailspan.behind as "
        f"select count() + 0 * ({fault}) as spans from tailspan.spans"
    )


def counts(engine: Engine) -> dict[str, int]:
    """How many spans the table and each rollup know of."""
    return {
        "spans": int(engine.rows("select count() from tailspan.spans")[0][0]),
        "traces": int(engine.rows("select sum(span_count) from tailspan.traces")[0][0]),
        "stage_minutes": int(engine.rows("select sum(span_count) from tailspan.stage_minutes")[0][0]),
        "stage_hours": int(engine.rows("select sum(span_count) from tailspan.stage_hours")[0][0]),
        "spans_sample": int(engine.rows("select count() from tailspan.spans_sample")[0][0]),
        "behind": int(engine.rows("select sum(spans) from tailspan.behind")[0][0]),
    }


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An embedded ClickHouse with the schema."""
    with Engine(make_database(tmp_path / "clickhouse")) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_view_delays_and_doubles_nothing(
    tmp_path: Path, engine: Engine, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch comes again with its own token until the view is mended; then table and rollups have each span once."""
    monkeypatch.setattr("tailspan_collector.delivery._LONGEST_WAIT_S", 0.1)
    break_a_view(engine.command, FAULTS[fault])
    spool = open_spool(tmp_path)
    for _ in range(5):
        spool.append(request_with_stages(20))
    metrics = Metrics()
    writer = Writer(spool, EmbeddedSink(engine), 1 << 20, 0.01, metrics)
    writer.start()
    failures = metrics.inserts.labels("traces", "transient")._value
    deadline = time.monotonic() + 30
    while failures.get() < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert failures.get() >= 6
    before = counts(engine)  # the other views may have been faster than the broken one
    assert (before["spans"], before["behind"]) == (300, 0)
    engine.command("insert into tailspan.mended values (1)")
    assert writer.drain(30)
    spool.close()
    (chosen,) = engine.rows("select countIf(sipHash64(trace_id) % 4096 < 256) from tailspan.spans")[0]
    rollups = {"traces": 300, "stage_minutes": 400, "stage_hours": 400, "spans_sample": int(chosen), "behind": 300}
    assert counts(engine) == {"spans": 300, **rollups}
    assert engine.rows("select count() from tailspan.rejects") == [["0"]]


def test_a_server_says_which_view_failed(tmp_path: Path) -> None:
    """Over HTTP, too, the whole text of an error arrives, by whose end the failing view is known."""
    with ServerProcess(tmp_path / "server") as process:
        server = Server(process.url)
        try:
            migrations.apply(server)
            long_fault = FAULTS["an error without a known code"].replace("'broken'", f"'{'broken ' * 300}'")
            break_a_view(server.command, long_fault)
            with pytest.raises(InsertError) as caught:
                ServerSink(server).insert(TRACES, framed(request_with_stages(1)), "token")
            assert isinstance(caught.value, TransientError)
        finally:
            server.close()
