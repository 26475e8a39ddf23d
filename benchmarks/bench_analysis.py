"""What the questions about many requests take: 10,000,000 requests of 24 hours, on two cores, against a real collector.

Each question goes over HTTP to the collector's embedded ClickHouse; commands are timed whole, with the start of Python.
CPU time is the collector's, which tells more than wall time where the machine has other work; memory is all that the
collector's process held at the peak, with its caches, and for commands that of their own process too. A table on
standard error says which tables each question read (`benchmarks.traffic.reads`).
Beside them stand the same questions to the schema of the OpenTelemetry Collector's exporter, over the same traces where
there are up to 1,000,000 of them; of more, over a tenth. What that takes is not scaled up, so that ratios then flatter
that schema tenfold wherever it reads every row: fair ones are those of TAILSPAN_BENCH_REQUESTS=1000000.
`stages_rollup.error` compares each percentile of the rollup with the exact one, of all spans.

TAILSPAN_BENCH_REQUESTS sets another number of requests. The data are made once (see `benchmarks.traffic.dataset`), in
20 to 60 minutes for 10,000,000; without the arrival traces the benchmark says so and measures nothing.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.result import Result
from benchmarks.traffic import peer, reads
from benchmarks.traffic.dataset import Dataset, dataset
from benchmarks.traffic.requests import Traffic
from benchmarks.traffic.served import CORES, Cost, Served, run_child, serve
from tailspan.errors import UserError
from tailspan_queries import catalog, sampling
from tailspan_queries.client import Client, connect
from tailspan_queries.filters import ALL
from tailspan_queries.lookup import span_window
from tailspan_queries.tail import READ_LIMIT
from tailspan_queries.times import Window as TimeWindow
from tailspan_queries.times import parse_window

REQUESTS = 10_000_000
GOAL_ROLLUP_MS, GOAL_ERROR, GOAL_TRACE_MS, GOAL_QUESTION_S = 100.0, 0.01, 50.0, 2.0
GOAL_REPORT_S = 30.0
"""Chosen: a page of all questions."""
GOAL_MIB, GOAL_CLIENT_MIB = 2048.0, 1024.0
"""Chosen: what a question may take on a machine with 4 GiB, of the collector and of the command's own process."""
PATIENCE_S = 120.0
"""A command that takes longer is stopped, and counts as that long."""
RUNS, COMMAND_RUNS, PEER_RUNS, TRACES = 5, 2, 3, 20
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
PEER_OF_COMMAND = {"stages": "stages_rollup", "tail": "tail_by"}


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

    @property
    def exact(self) -> TimeWindow:
        """As the reports take it."""
        since, until = (moment.replace(" ", "T") + "Z" for moment in (self.since, self.until))
        return parse_window(since, until)


@dataclass(frozen=True, slots=True)
class Bench:
    """A collector over the data, a connection to it, and what was found so far."""

    served: Served
    client: Client
    found: Dataset
    window: Window
    results: list[Result] = field(default_factory=list)
    rows: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def peer(self) -> str:
        """What ours is held against."""
        return f"otel_traces, {peer.part(self.found.traffic.requests)}"

    def ask(self, sql: str, parameters: dict[str, str]) -> Sequence[Sequence[Any]]:
        """Run SQL that is not shipped."""
        return self.client.execute(catalog.Query("benchmark", sql), parameters).rows

    def ask_peer(self, name: str) -> Cost | None:
        """Ask the other schema; None where it has no such question."""
        if (sql := peer.QUESTIONS.get(name)) is None:
            return None
        return self.served.cost(lambda _: self.ask(sql, self.window.parameters), PEER_RUNS)

    def note(self, name: str, cost: Cost, theirs: Cost | None, tables: Sequence[str], goal_s: float, unit: str) -> None:
        """Add the results of a question."""
        scale = 1e3 if unit == "ms" else 1.0
        whose = self.peer if theirs else None

        def add(what: str, value: float, of_unit: str, goal: float, other: float | None) -> None:
            self.results.append(Result(f"analysis.{name}.{what}", value, of_unit, goal, peer=whose, peer_value=other))

        add("wall", cost.median_s * scale, unit, goal_s * scale, theirs.median_s * scale if theirs else None)
        add("cpu", cost.cpu_s * scale, unit, goal_s * scale * CORES, theirs.cpu_s * scale if theirs else None)
        add("memory", cost.peak_mib, "MiB", GOAL_MIB, theirs.peak_mib if theirs else None)
        ratio = f"{theirs.cpu_s / cost.cpu_s:.2f}" if theirs and cost.cpu_s > 0 else "-"
        self.rows.append(
            (name, ", ".join(tables), f"{cost.median_s:.3f}", f"{cost.cpu_s:.3f}", f"{cost.peak_mib:.0f}", ratio)
        )


def run() -> list[Result]:
    """Find or make the data, start a collector over them, ask."""
    try:
        found = dataset(Traffic(int(os.environ.get("TAILSPAN_BENCH_REQUESTS") or REQUESTS)))
    except UserError as error:
        print(f"analysis: nothing is measured: {error}", file=sys.stderr)
        return []
    peer.ensure(found.folder, found.traffic.requests)
    window = Window("2026-11-28 12:00:00", "2026-11-29 00:00:00", "2026-11-29 12:00:00")
    with serve(found.folder) as served, tempfile.TemporaryDirectory() as folder:
        bench = Bench(served, connect(served.url), found, window)
        rollup(bench)
        traces(bench)
        asked = sampling.choose(bench.client, bench.window.exact, ALL, READ_LIMIT)
        query(bench, "tail_by", GOAL_QUESTION_S, "s", asked.parameters)
        for name, words in commands(window, Path(folder)).items():
            command(bench, name, words, GOAL_REPORT_S if name == "report" else GOAL_QUESTION_S)
        bench.client.close()
    Console(stderr=True, width=150).print(table(bench))
    return bench.results


def table(bench: Bench) -> Table:
    """Draw the questions for people."""
    names = ("question", "tables read", "wall, s", "CPU, s", "memory, MiB", f"CPU of {bench.peer}, times")
    drawn = Table(*names, title=f"{bench.found.traffic.requests:,} requests of 24 h", title_justify="left")
    for row in bench.rows:
        drawn.add_row(*row)
    return drawn


def commands(window: Window, folder: Path) -> dict[str, list[str]]:
    """Return the arguments of each command that is timed."""
    since, middle, until = (moment.replace(" ", "T") + "Z" for moment in (window.since, window.middle, window.until))
    whole = ["--since", since, "--until", until]
    printed = ["--format", "json"]
    return {
        "stages": [*whole, *printed],
        "latency": [*whole, *printed],
        "tail": [*whole, *printed],
        "different": [*whole, *printed],
        "fairness": [*whole, *printed],
        "slowest": [*whole, *printed],
        "compare": ["--before", f"{since}..{middle}", "--after", f"{middle}..{until}", *printed],
        "report": [*whole, "-o", str(folder / "report.html")],
    }


def rollup(bench: Bench) -> None:
    """Ask for the percentiles of all stages, and compare them with the exact ones."""
    query(bench, "stages_rollup", GOAL_ROLLUP_MS / 1e3, "ms")
    rows = {row["stage"]: row for row in bench.client.run("stages_rollup", bench.window.parameters).records()}
    errors = {
        (stage, name): abs(rows[stage][f"wall_{name}_ns"] / exact - 1)
        for stage, values in exact_percentiles(bench).items()
        for name, exact in values.items()
    }
    bench.results.append(Result("analysis.stages_rollup.error", max(errors.values()), "", GOAL_ERROR))


def exact_percentiles(bench: Bench) -> dict[str, dict[str, float]]:
    """Return the exact percentiles of every stage, ns; computed from all spans once and kept beside the data."""
    file = bench.found.folder / "exact.json"
    if not file.is_file():
        found: dict[str, dict[str, float]] = {}
        for row in bench.client.run("stages_rollup", bench.window.parameters).records():
            stage = row["stage"]
            column = "unattributed_ns" if stage == "unattributed" else "duration_ns"
            which = "role = 'request'" if stage in ("request", "unattributed") else f"stage = '{stage}'"
            sql = (
                f"select quantilesExactLow({', '.join(map(str, QUANTILES.values()))})({column}) as q "
                f"from tailspan.spans where {which} and start >= {{since:DateTime64(9, 'UTC')}} "
                "and start < {until:DateTime64(9, 'UTC')}"
            )
            found[stage] = dict(zip(QUANTILES, map(float, bench.ask(sql, bench.window.parameters)[0][0]), strict=True))
        file.write_text(json.dumps(found), encoding="utf-8")
    read: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))
    return read


def traces(bench: Bench) -> None:
    """Ask for single traces by id."""
    sql = "select distinct TraceId from otel.otel_traces where SpanKind = 'Server' and TraceId < '02' limit 1000"
    ids = [row[0] for row in bench.ask(sql, {})]
    chosen = random.Random(3).sample(ids, TRACES + 1)
    asked: list[reads.Asked] = []

    def ours(number: int) -> None:
        bounds = {"first": chosen[number], "last": chosen[number]}
        row = bench.client.run("trace_lookup", bounds).records()[0]
        parameters = {"trace_id": chosen[number], **span_window(row).parameters}
        asked[:] = [(catalog.load("trace_lookup"), bounds), (catalog.load("trace"), parameters)]
        if not bench.client.run("trace", parameters).rows:
            raise RuntimeError(f"trace {chosen[number]} has no spans")

    cost = bench.served.cost(ours, TRACES)
    by_id = peer.QUESTIONS["trace"]
    theirs = bench.served.cost(lambda number: bench.ask(by_id, {"trace_id": chosen[number]}), TRACES)
    bench.note("trace_by_id", cost, theirs, reads.tables(bench.client, asked), GOAL_TRACE_MS / 1e3, "ms")
    bench.results.append(
        Result("analysis.trace_by_id.p95", cost.p95_s * 1e3, "ms", GOAL_TRACE_MS, peer=bench.peer,
               peer_value=theirs.p95_s * 1e3)
    )  # fmt: skip


def query(bench: Bench, name: str, goal_s: float, unit: str, sample: Mapping[str, str | int] | None = None) -> None:
    """Ask a shipped query, of a sample if one is given."""
    parameters = {**bench.window.parameters, **(sample or {})}
    cost = bench.served.cost(lambda _: bench.client.run(name, parameters), RUNS)
    tables = reads.tables(bench.client, [(catalog.load(name), parameters)])
    bench.note(name, cost, bench.ask_peer(name), tables, goal_s, unit)


def command(bench: Bench, name: str, words: list[str], goal_s: float) -> None:
    """Run a command as people do, after once in this process to see what it asks."""
    words = [name, *words, "--url", bench.served.url]
    tables = reads.of_command(bench.client, words)
    peaks_mib = [0.0]

    def ask(_: int) -> None:
        peaks_mib.append(run_child([sys.executable, "-m", "tailspan", *words], PATIENCE_S))

    cost = bench.served.cost(ask, COMMAND_RUNS, warm_up=0)
    bench.note(f"command_{name}", cost, bench.ask_peer(PEER_OF_COMMAND.get(name, name)), tables, goal_s, "s")
    bench.results.append(Result(f"analysis.command_{name}.client_memory", max(peaks_mib), "MiB", GOAL_CLIENT_MIB))
