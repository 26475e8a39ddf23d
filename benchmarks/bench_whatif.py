"""How well `tailspan whatif` predicts: runs of an engine with another batch, arrival rate, output length, and several.

One run is recorded; each changed one is predicted from it and then held against what was really measured. The first row
is the replay of the recorded run itself. The device of the engine is a clock (see `whatif_runs`), so that the error is
that of the model and not of the machine; how late steps ended all the same stands in each title.
`TAILSPAN_BENCH_SERVER=1` runs SmolLM2 on the CPU instead, in slices that take turns. How much faster or slower its
machine was in one run than in the other is measured at its steps, and printed; the column `at its pace` is the error of
a prediction that is told.
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
from benchmarks.whatif_runs import Recorded, Run, recorded, server_runs, sleeper_runs
from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.whatif import WhatIf, fit_engines, what_if
from tailspan_queries.whatif_engine import serve
from tailspan_queries.whatif_fit import contexts
from tailspan_queries.whatif_measures import MEASURES, ratio
from tailspan_queries.whatif_read import read
from tailspan_queries.whatif_records import UNKNOWN, Change, Cost, Limits, Load, Noise
from tailspan_queries.whatif_view import change_text

GOAL, SERVER_GOAL, REPLAY_GOAL_S = 0.1, 0.25, 10.0
SLEEPER_BATCH, SLEEPER_SMALL, SLEEPER_LARGE = 8, 5, 12
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
    if not server:
        runs.append(Run("larger batch and more arrivals", SLEEPER_LARGE, rate=1.4))
    make, goal = (server_runs, SERVER_GOAL) if server else (sleeper_runs, GOAL)
    with (
        tempfile.TemporaryDirectory() as folder,
        recorded(Path(folder), make, runs) as (database, made),
    ):
        return [*compare(database, made, goal), replay_time()]


def compare(database: Client, made: list[Recorded], goal: float) -> list[Result]:
    """Predict every run from the first; print all measures, and return the error at P50 and P99 end to end."""
    base = made[0]
    results = []
    console = Console(width=110)
    for item in made:
        change = change_of(item.run, base.run)
        found = what_if(database, base.window, base.filters, change, force=True)
        real = what_if(database, item.window, item.filters, force=True, seeds=1)
        paced = None
        if item.late_ratio is None:
            slower = slowness(database, base, item)
            change = replace(change, speedups=(("prefill", 1 / slower), ("decode", 1 / slower)))
            paced = what_if(database, base.window, base.filters, change, force=True)
            how = f"its steps took {slower:.2f} times as long as those of the recorded run would have"
        else:
            how = f"steps ended {units.percent_text(item.late_ratio)} of their time too late; try {item.tries}"
        console.print(drawn(f"{item.run.name} ({how})", found, paced, real))
        for name in ("e2e P50", "e2e P99"):
            error = abs((found.measure(name).predicted_ns or 0) / (real.measure(name).measured_ns or 1) - 1)
            results.append(Result(f"{item.run.name}, {name}: error", error, "ratio", goal))
    return results


def change_of(run: Run, base: Run) -> Change:
    """Return what differs between two runs."""
    return Change(
        batch=run.batch if run.batch != base.batch else None, arrivals=run.rate, output_tokens=run.output_length
    )


def slowness(database: Client, base: Recorded, item: Recorded) -> float:
    """Return by which factor a run's steps took longer than steps of the same make in the recorded run."""
    ours, theirs = (read(database, made.window, made.filters) for made in (base, item))
    (model,), _ = fit_engines(ours, UNKNOWN)
    (requests,) = theirs.requests
    steps = theirs.steps[requests.engine]
    context, _ = contexts(requests, steps.step)
    cost, prompts = model.cost, steps.prefill_tokens
    meant = (
        cost.base
        + cost.request * steps.decode_tokens
        + cost.context * context * (steps.decode_tokens > 0)
        + (cost.start + cost.token * prompts) * (prompts > 0)
    )
    return float(steps.period_ns.sum() / (meant.sum() * model.residuals.pace.mean()))


def drawn(name: str, found: WhatIf, paced: WhatIf | None, real: WhatIf) -> Table:
    """Draw prediction beside measurement."""
    title = f"{name}: {change_text(found.change) or 'replayed'}"
    columns = ["", "recorded", "predicted", "then measured", "error", *(["at its pace"] * (paced is not None))]
    table = Table(*columns, title=title, title_justify="left")
    for measure, _, _ in MEASURES:
        predicted, measured = found.measure(measure), real.measure(measure)
        errors = [
            ratio(report.measure(measure).predicted_ns, measured.measured_ns) for report in (found, paced) if report
        ]
        table.add_row(
            measure,
            units.duration(predicted.measured_ns),
            units.duration(predicted.predicted_ns),
            units.duration(measured.measured_ns),
            *(units.percent(error) for error in errors),
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
