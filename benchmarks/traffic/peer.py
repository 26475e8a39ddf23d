"""A part of the traffic in the schema of the OpenTelemetry Collector's ClickHouse exporter, in the same database.

All traces of up to `ALL_UP_TO` requests; above, a tenth of them, of all hours: enough to see what a question costs,
which for these tables grows with their rows. `QUESTIONS` are those that our queries answer, asked of those tables.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.rotel import OTEL_TRACES
from tailspan import attributes as attr
from tailspan_collector.embedded import Engine, Folder

ALL_UP_TO = 1_000_000
ALL, TENTH = "all traces", "a tenth of the traces"
_LAST_DIGITS = {ALL: "g", TENTH: "1a"}
"""Traces whose last two hexadecimal digits are below: every one, or 26 of 256, 10.2 %."""
_WINDOW = "Timestamp >= {since:DateTime64(9, 'UTC')} and Timestamp < {until:DateTime64(9, 'UTC')}"
QUESTIONS = {
    "stages_rollup": f"""
        select SpanName, quantiles(0.5, 0.9, 0.95, 0.99, 0.999)(Duration) from otel.otel_traces
        where {_WINDOW} and SpanName != 'step' group by SpanName""",
    "latency": f"""
        select quantiles(0.5, 0.9, 0.95, 0.99)(toFloat64OrZero(SpanAttributes['{attr.GEN_AI_LATENCY_TTFT}']))
        from otel.otel_traces where {_WINDOW} and SpanKind = 'Server'""",
    "trace": "select * from otel.otel_traces where TraceId = {trace_id:String} order by Timestamp",
    "tail_by": f"""
        with roots as (select TraceId, Duration from otel.otel_traces where {_WINDOW} and SpanKind = 'Server')
        select SpanName, sum(Duration) from otel.otel_traces
        where {_WINDOW} and TraceId in (
            select TraceId from roots where Duration >= (select quantileExact(0.99)(Duration) from roots))
        group by SpanName""",
    "compare": f"""
        select SpanName, Timestamp < {{middle:DateTime64(9, 'UTC')}} as before,
               quantiles(0.5, 0.9, 0.95, 0.99)(Duration) from otel.otel_traces
        where {_WINDOW} and SpanName != 'step' group by SpanName, before""",
    "different": f"""
        with roots as (select Duration, SpanAttributes from otel.otel_traces where {_WINDOW} and SpanKind = 'Server')
        select pair.1 as name, pair.2 as value, count(), countIf(Duration >= (
            select quantileExact(0.99)(Duration) from roots)) as slow
        from roots array join cast(SpanAttributes, 'Array(Tuple(String, String))') as pair
        group by name, value order by slow desc limit 100""",
}


def part(requests: int) -> str:
    """Return which traces of a data set are here."""
    return ALL if requests <= ALL_UP_TO else TENTH


def ensure(folder: Path, requests: int) -> None:
    """Fill the tables of a data set's folder unless that was done before."""
    mark = folder / "otel_traces"
    if mark.exists():
        return
    lock = Folder(folder)
    try:
        with Engine(folder / "clickhouse") as engine:
            fill(engine, part(requests))
    finally:
        lock.close()
    mark.touch()


def fill(engine: Engine, share: str) -> None:
    """Create `otel.otel_traces` anew and fill it from our own table, by the view that has its columns.

    `share` is `ALL` or `TENTH`.
    """
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
            f"and right(TraceId, 2) < '{_LAST_DIGITS[share]}' settings max_threads = 2, insert_deduplicate = 0"
        )
    engine.command("optimize table otel.otel_traces final")
