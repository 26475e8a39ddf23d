"""A part of the traffic in the schema of the OpenTelemetry Collector's ClickHouse exporter, in the same database.

A tenth of the traces, of all hours: enough to see what a question costs, which for these tables grows with their rows.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.rotel import OTEL_TRACES
from tailspan_collector.embedded import Engine, Folder

LAST_DIGITS = "1a"
"""Traces whose last two hexadecimal digits are below: 26 of 256, 10.2 %."""
SHARE = 26 / 256


def ensure(folder: Path) -> None:
    """Fill the tables of a data set's folder unless that was done before."""
    mark = folder / "otel_traces"
    if mark.exists():
        return
    lock = Folder(folder)
    try:
        with Engine(folder / "clickhouse") as engine:
            fill(engine)
    finally:
        lock.close()
    mark.touch()


def fill(engine: Engine) -> None:
    """Create `otel.otel_traces` anew and fill it from our own table, by the view that has its columns."""
    engine.command("drop database if exists otel")
    engine.command("create database otel")
    engine.command(OTEL_TRACES)
    names = ", ".join(
        f"`{name}`"
        for (name,) in engine.rows(
            "select name from system.columns where database = 'otel' and table = 'otel_traces' order by position"
        )
    )
    hours = engine.rows("select distinct toUnixTimestamp(toStartOfHour(minute)) as hour from tailspan.stage_minutes")
    for hour in sorted(int(row[0]) for row in hours):
        engine.command(
            f"insert into otel.otel_traces ({names}) select {names} from tailspan.otel_traces "
            f"where Timestamp >= toDateTime64({hour}, 9, 'UTC') and Timestamp < toDateTime64({hour + 3600}, 9, 'UTC') "
            f"and right(TraceId, 2) < '{LAST_DIGITS}' settings max_threads = 2, insert_deduplicate = 0"
        )
    engine.command("optimize table otel.otel_traces final")
