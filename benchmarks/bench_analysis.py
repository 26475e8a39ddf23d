"""What the questions about many requests take: 10,000,000 requests of 24 hours, on two cores, against a real collector.

Each question goes over HTTP to the collector's embedded ClickHouse; commands are timed whole, with the start of Python.
CPU time is the collector's, which tells more than wall time where the machine has other work.
Beside them stand the same questions to a tenth of the traces in the schema of the OpenTelemetry Collector's exporter:
what those take is not scaled up, so that ratios flatter that schema tenfold wherever it reads every row.
`stages_rollup.error` compares each percentile of the rollup with the exact one, of all spans.

TAILSPAN_BENCH_REQUESTS sets another number of requests. The data are made once (see `benchmarks.traffic.dataset`), in
about 15 minutes for 10,000,000; without the arrival traces the benchmark says so and measures nothing.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result import Result
from benchmarks.traffic import peer
from benchmarks.traffic.dataset import Dataset, dataset
from benchmarks.traffic.requests import Traffic
from benchmarks.traffic.served import CORES, Served, serve
from tailspan.errors import UserError
from tailspan_queries import catalog
from tailspan_queries.client import Client, connect

REQUESTS = 10_000_000
GOAL_ROLLUP_MS, GOAL_ERROR, GOAL_TRACE_MS, GOAL_QUESTION_S = 100.0, 0.01, 50.0, 2.0
GOAL_MIB = 2048.0
"""Chosen: what a question may take on a machine with 4 GiB."""
PEER = "otel_traces, a tenth of the traces"
PATIENCE_S = 120.0
"""A command that takes longer is stopped, and counts as that long."""
RUNS, TRACES = 5, 20
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_WINDOW = "Timestamp >= {since:DateTime64(9, 'UTC')} and Timestamp < {until:DateTime64(9, 'UTC')}"
_ROOT = "SpanAttributes['tailspan.role'] = 'request'"
PEER_SQL = {
    "stages_rollup": f"""
        select SpanName, quantiles(0.5, 0.9, 0.95, 0.99, 0.999)(Duration) from otel.otel_traces
        where {_WINDOW} and SpanName != 'step' group by SpanName""",
    "trace": "select * from otel.otel_traces where TraceId = {trace_id:String} order by Timestamp",
    "tail_share": f"""
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


@dataclass(frozen=True, slots=True)
class Window:
    """The 24 hours and their middle, as ClickHouse reads them."""

    since: str
    middle: str
    until: str

    @property
    def parameters(self) -> dict[str, str]:
        """For queries."""
        return {"since": self.since, "middle": self.middle, "until": self.until}


def run() -> list[Result]:
    """Find or make the data, start a collector over them, ask."""
    try:
        found = dataset(Traffic(int(os.environ.get("TAILSPAN_BENCH_REQUESTS") or REQUESTS)))
    except UserError as error:
        print(f"analysis: nothing is measured: {error}", file=sys.stderr)
        return []
    peer.ensure(found.folder)
    window = Window("2026-11-28 12:00:00", "2026-11-29 00:00:00", "2026-11-29 12:00:00")
    with serve(found.folder) as served:
        client = connect(served.url)
        results = [*_rollup(served, client, found, window), *_traces(served, client, window)]
        results += _query(served, client, "tail_share", window)
        for name, words in _commands(window).items():
            results += _command(served, client, name, words, window)
        client.close()
    return results


def _commands(window: Window) -> dict[str, list[str]]:
    since, middle, until = (moment.replace(" ", "T") + "Z" for moment in (window.since, window.middle, window.until))
    whole = ["--since", since, "--until", until]
    return {
        "stages": whole,
        "tail": whole,
        "different": whole,
        "compare": ["--before", f"{since}..{middle}", "--after", f"{middle}..{until}"],
    }


def _rollup(served: Served, client: Client, found: Dataset, window: Window) -> list[Result]:
    results = _query(served, client, "stages_rollup", window, GOAL_ROLLUP_MS / 1e3, "ms")
    rows = {row["stage"]: row for row in client.run("stages_rollup", window.parameters).records()}
    errors = {
        (stage, name): abs(rows[stage][f"wall_{name}_ns"] / exact - 1)
        for stage, values in exact_percentiles(client, found.folder, window).items()
        for name, exact in values.items()
    }
    return [*results, Result("analysis.stages_rollup.error", max(errors.values()), "", GOAL_ERROR)]


def exact_percentiles(client: Client, folder: Path, window: Window) -> dict[str, dict[str, float]]:
    """Return the exact percentiles of every stage, ns; computed from all spans once and kept beside the data."""
    file = folder / "exact.json"
    if not file.is_file():
        found: dict[str, dict[str, float]] = {}
        stages = [row["stage"] for row in client.run("stages_rollup", window.parameters).records()]
        for stage in stages:
            column = "unattributed_ns" if stage == "unattributed" else "duration_ns"
            which = "role = 'request'" if stage in ("request", "unattributed") else f"stage = '{stage}'"
            sql = (
                f"select quantilesExactLow({', '.join(map(str, QUANTILES.values()))})({column}) as q "
                f"from tailspan.spans where {which} and start >= {{since:DateTime64(9, 'UTC')}} "
                "and start < {until:DateTime64(9, 'UTC')}"
            )
            values = _ask(client, sql, window.parameters)[0][0]
            found[stage] = dict(zip(QUANTILES, map(float, values), strict=True))
        file.write_text(json.dumps(found), encoding="utf-8")
    read: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))
    return read


def _traces(served: Served, client: Client, window: Window) -> list[Result]:
    sql = "select distinct TraceId from otel.otel_traces where SpanKind = 'Server' and TraceId < '02' limit 1000"
    ids = [row[0] for row in _ask(client, sql, {})]
    chosen = random.Random(3).sample(ids, TRACES + 1)

    def ours(number: int) -> None:
        bounds = {"first": chosen[number], "last": chosen[number]}
        row = client.run("trace_lookup", bounds).records()[0]
        parameters = {"trace_id": chosen[number], "since": row["start"], "until": window.until}
        if not client.run("trace", parameters).rows:
            raise RuntimeError(f"trace {chosen[number]} has no spans")

    cost = served.cost(ours, TRACES)
    theirs = served.cost(lambda number: _ask(client, PEER_SQL["trace"], {"trace_id": chosen[number]}), TRACES)
    return [
        Result("analysis.trace_by_id.median", cost.median_s * 1e3, "ms", GOAL_TRACE_MS, peer=PEER,
               peer_value=theirs.median_s * 1e3),
        Result("analysis.trace_by_id.cpu", cost.cpu_s * 1e3, "ms", GOAL_TRACE_MS * CORES, peer=PEER,
               peer_value=theirs.cpu_s * 1e3),
        Result("analysis.trace_by_id.p95", cost.p95_s * 1e3, "ms", GOAL_TRACE_MS, peer=PEER,
               peer_value=theirs.p95_s * 1e3),
        Result("analysis.trace_by_id.memory", cost.peak_mib, "MiB", GOAL_MIB),
    ]  # fmt: skip


def _query(
    served: Served, client: Client, name: str, window: Window, goal_s: float = GOAL_QUESTION_S, unit: str = "s"
) -> list[Result]:
    cost = served.cost(lambda _: client.run(name, window.parameters), RUNS)
    theirs = served.cost(lambda _: _ask(client, PEER_SQL[name], window.parameters), 3)
    scale = 1e3 if unit == "ms" else 1.0
    return [
        Result(f"analysis.{name}.wall", cost.median_s * scale, unit, goal_s * scale, peer=PEER,
               peer_value=theirs.median_s * scale),
        Result(f"analysis.{name}.cpu", cost.cpu_s * scale, unit, goal_s * scale * CORES, peer=PEER,
               peer_value=theirs.cpu_s * scale),
        Result(f"analysis.{name}.memory", cost.peak_mib, "MiB", GOAL_MIB, peer=PEER, peer_value=theirs.peak_mib),
    ]  # fmt: skip


def _command(served: Served, client: Client, name: str, words: list[str], window: Window) -> list[Result]:
    program = [sys.executable, "-m", "tailspan", name]
    if subprocess.run([*program, "--help"], capture_output=True).returncode:
        print(f"analysis: there is no command {name} yet; it is left out", file=sys.stderr)
        return []

    def ask(_: int) -> None:
        command = [*program, *words, "--url", served.url, "--format", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return
        if done.returncode not in (0, 1) or not done.stdout.strip():
            raise RuntimeError(f"tailspan {name} failed: {done.stderr[-2000:]}")

    cost = served.cost(ask, 2, warm_up=0)
    known = {"tail": "tail_share"}.get(name, name)
    sql = PEER_SQL.get(known)
    theirs = served.cost(lambda _: _ask(client, sql, window.parameters), 3) if sql else None
    return [
        Result(f"analysis.command_{name}.wall", cost.median_s, "s", GOAL_QUESTION_S, peer=PEER if theirs else None,
               peer_value=theirs.median_s if theirs else None),
        Result(f"analysis.command_{name}.cpu", cost.cpu_s, "s", GOAL_QUESTION_S * CORES, peer=PEER if theirs else None,
               peer_value=theirs.cpu_s if theirs else None),
        Result(f"analysis.command_{name}.memory", cost.peak_mib, "MiB", GOAL_MIB),
    ]  # fmt: skip


def _ask(client: Client, sql: str, parameters: dict[str, str]) -> Sequence[Sequence[Any]]:
    """Run SQL that is not shipped."""
    return client.execute(catalog.Query("benchmark", sql), parameters).rows
