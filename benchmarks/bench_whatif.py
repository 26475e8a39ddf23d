"""How well `tailspan whatif` predicts: runs of an engine with a changed batch, arrival rate and output length.

One run is recorded; each changed one is predicted from it and then held against what was really measured. The first row
is the replay of the recorded run itself. The device of the engine is a clock (see `whatif_runs`), but on a busy machine
steps still take longer than they should, in one run more than in another. How much is known here, and given to the
prediction as a speed-up of all steps; the column `as is` is the error without that. `TAILSPAN_BENCH_SERVER=1` runs
SmolLM2 on the CPU instead, whose speed depends wholly on what else runs, and is not known.
The last row is the time to replay 100,000 requests once.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.result import Result
from benchmarks.whatif_runs import Recorded, Run, recorded, server_run, sleeper_run
from benchmarks.whatif_sleeper import step_s
from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.times import Window
from tailspan_queries.whatif import WhatIf, what_if
from tailspan_queries.whatif_engine import serve
from tailspan_queries.whatif_measures import MEASURES, ratio
from tailspan_queries.whatif_records import Change, Cost, Limits, Load, Noise
from tailspan_queries.whatif_view import change_text

GOAL, REPLAY_GOAL_S = 0.15, 10.0
SLEEPER_BATCH, SLEEPER_SMALL = 8, 5
SERVER_BATCH, SERVER_SMALL = 12, 5
REPLAYED = 100_000


def run() -> list[Result]:
    """Make the runs, predict, compare."""
    server = os.environ.get("TAILSPAN_BENCH_SERVER") == "1"
    batch, small = (SERVER_BATCH, SERVER_SMALL) if server else (SLEEPER_BATCH, SLEEPER_SMALL)
    runs = [
        Run("as recorded", batch),
        Run("batch limit", small),
        Run("arrival rate", batch, rate=1.3),
        Run("output length", batch, output_length=0.5),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        recorded(Path(folder), server_run if server else sleeper_run, runs) as (database, made),
    ):
        return [*compare(database, made, is_clock=not server), replay_time()]


def compare(database: Client, made: list[Recorded], *, is_clock: bool) -> list[Result]:
    """Predict every run from the first; print all measures, and return the error at P50 and P99 end to end."""
    base = made[0]
    results = []
    console = Console(width=110)
    for item in made:
        change = change_of(item.run, base.run)
        as_is = found = what_if(database, base.window, change=change, force=True)
        if is_clock and item is not base:
            faster = slowness(database, base.window) / slowness(database, item.window)
            change = replace(change, speedups=(("prefill", faster), ("decode", faster)))
            found = what_if(database, base.window, change=change, force=True)
        real = what_if(database, item.window, force=True, seeds=1)
        console.print(drawn(item.run.name, as_is, found, real))
        for name in ("e2e P50", "e2e P99"):
            error = abs((found.measure(name).predicted_ns or 0) / (real.measure(name).measured_ns or 1) - 1)
            results.append(Result(f"{item.run.name}, {name}: error", error, "ratio", GOAL))
    return results


def change_of(run: Run, base: Run) -> Change:
    """Return what differs between two runs."""
    return Change(
        max_batch=run.batch if run.batch != base.batch else None, rate=run.rate, output_length=run.output_length
    )


def slowness(database: Client, window: Window) -> float:
    """Return by which factor the steps of the clocked engine took longer than they should."""
    rows = database.run("whatif_steps", window.parameters).records()
    meant_ns = sum(step_s(row["prefill_tokens"], row["decode_tokens"]) for row in rows) * 1e9
    return float(sum(row["period_ns"] for row in rows) / meant_ns)


def drawn(name: str, as_is: WhatIf, found: WhatIf, real: WhatIf) -> Table:
    """Draw prediction beside measurement."""
    title = f"{name}: {change_text(found.change) or 'replayed'}"
    table = Table("", "recorded", "predicted", "then measured", "error", "as is", title=title, title_justify="left")
    for measure, _, _ in MEASURES:
        predicted, measured = found.measure(measure), real.measure(measure)
        error, raw = (ratio(report.measure(measure).predicted_ns, measured.measured_ns) for report in (found, as_is))
        table.add_row(
            measure,
            units.duration(predicted.measured_ns),
            units.duration(predicted.predicted_ns),
            units.duration(measured.measured_ns),
            units.percent(error),
            units.percent(raw),
        )
    return table


def replay_time() -> Result:
    """Time one replay of many requests with the lengths of real chats at a load of about 80 %."""
    random = np.random.default_rng(1)
    arrival_ns = np.cumsum(random.exponential(1e9 / 9, REPLAYED))
    output = np.maximum(1, random.lognormal(np.log(129), 0.66, REPLAYED)).astype(np.int64)
    load = Load(arrival_ns, random.integers(10, 4000, REPLAYED), np.zeros(REPLAYED, np.int64), output)
    noise = Noise(random.lognormal(0, 0.2, 20_000), random.lognormal(0, 0.2, 20_000))
    begin = time.perf_counter()
    serve(load, Limits(64, 2048, 200_000), Cost(12e6, 1e5, 10.0, 12e6, 1e6, 2e4), noise)
    return Result(f"replay of {REPLAYED:,} requests", time.perf_counter() - begin, "s", REPLAY_GOAL_S)
