"""Runs of an engine that `bench_whatif` predicts: the same load, with one thing changed.

In: a folder for the spans, the runs to make. Out: where the spans of each run are, and a client to read them.
Either the device is a clock (`whatif_sleeper`: real scheduler, times that hardly depend on what else runs; a run whose
steps ended too late all the same is made again, at most `MOST_TRIES` times). Or it is the demo's server, SmolLM2-135M
on the CPU, whose speed changes from minute to minute: every run has a server of its own, all of them are up, and a
slice of each run's requests goes to each of them in turn (A B C D, D C B A, ..), so that all had the same minutes. A
page of the KV cache holds a request there, so that the pages are the batch.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tailspan_queries.client import Client, connect
from tailspan_queries.demo.collector import Collector, collecting
from tailspan_queries.demo.driver import send_load
from tailspan_queries.demo.load import Job
from tailspan_queries.demo.model import prepare_model
from tailspan_queries.demo.processes import clean_environment, free_ports, script
from tailspan_queries.demo.serve_transformers import transformers_engine
from tailspan_queries.demo.server import HOST, Engine, serving
from tailspan_queries.demo.session import await_traces, warm_up
from tailspan_queries.demo.workload import (
    AZURE_OUTPUT,
    AZURE_PROMPT,
    PlannedRequest,
    arrival_times_s,
    lengths,
    plan_load,
)
from tailspan_queries.filters import Filters
from tailspan_queries.times import Window

SEED = 5
SLEEPER_REQUESTS, SLEEPER_RATE_PER_S, SLEEPER_TOKENS = 240, 7.0, 256
SERVER_SLICES, SERVER_REQUESTS, SERVER_RATE_PER_S = 4, 25, 2.0
"""Slices of a run, requests of a slice."""
SETTLE_S = 3.0
LATE, MOST_TRIES = 0.05, 3
"""Share of a step's time by which steps may end too late, and how often a run is made."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its batch, and what differs from the plain one."""

    name: str
    batch: int
    rate: float = 1.0
    output_length: float = 1.0

    @property
    def instance(self) -> str:
        """The name under which its spans are stored."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that was made: the spans of an instance in a window."""

    run: Run
    window: Window
    filters: Filters
    late_ratio: float | None = None
    """Mean of how much too late steps ended, of what they take; None where nobody knows what they should take."""
    tries: int = 1


Make = Callable[[Sequence[Run], Collector, Client, Path], list[Recorded]]


def sleeper_runs(runs: Sequence[Run], collector: Collector, _database: Client, folder: Path) -> list[Recorded]:
    """Make every run on the engine whose device is a clock, again where it was disturbed; the best try counts."""
    made = []
    for run in runs:
        tries: list[Recorded] = []
        while not tries or (len(tries) < MOST_TRIES and min(late_of(item) for item in tries) > LATE):
            tries.append(sleeper_run(run, collector, folder / f"{run.instance}-{len(tries)}.log"))
            print(f"{run.name}: steps ended {late_of(tries[-1]):.1%} of their time too late", flush=True)
            time.sleep(SETTLE_S)
        made.append(replace(min(tries, key=late_of), tries=len(tries)))
    return made


def late_of(made: Recorded) -> float:
    """Return how late steps were."""
    return made.late_ratio or 0.0


def sleeper_run(run: Run, collector: Collector, log_file: Path) -> Recorded:
    """Run the engine whose device is a clock, once."""
    import numpy as np

    random = np.random.default_rng(SEED)
    arrivals = arrival_times_s(random, SLEEPER_REQUESTS, SLEEPER_RATE_PER_S) / run.rate
    prompts = lengths(random, AZURE_PROMPT, 1 / 16, SLEEPER_REQUESTS)
    outputs = lengths(random, AZURE_OUTPUT, 1 / 8, SLEEPER_REQUESTS)
    outputs = np.maximum(np.rint(outputs * run.output_length), 1)
    planned = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    requests = [[at_s, prompt, int(output)] for at_s, prompt, output in planned]
    job = {"requests": requests, "max_batch": run.batch, "max_tokens": SLEEPER_TOKENS}
    environment = clean_environment(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{HOST}:{collector.otlp_port}",
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_SERVICE_NAME="sleeper",
        OTEL_RESOURCE_ATTRIBUTES=f"service.instance.id={run.instance}",
        OMP_NUM_THREADS="1",
    )
    command = [script("tailspan"), "run", "--", sys.executable, "-m", "benchmarks.whatif_sleeper"]
    with log_file.open("w") as log:
        ran = subprocess.run(
            command, input=json.dumps(job), text=True, env=environment, check=True, stdout=subprocess.PIPE, stderr=log
        )
    said = json.loads(ran.stdout.splitlines()[-1])
    window = Window(said["since_ns"], time.time_ns())
    return Recorded(run, window, Filters(instance=run.instance), said["late_ratio"])


def server_runs(runs: Sequence[Run], collector: Collector, database: Client, folder: Path) -> list[Recorded]:
    """Serve SmolLM2 once for each run, and send the demo's load in slices that take turns."""
    model = prepare_model(lambda _done, _text: None)
    plans = [plan_load(SERVER_REQUESTS, SERVER_RATE_PER_S, SEED + number) for number in range(SERVER_SLICES)]
    with ExitStack() as stack:
        servers = {}
        for run, port in zip(runs, free_ports(len(runs)), strict=True):
            logs = folder / run.instance
            logs.mkdir()
            servers[run] = stack.enter_context(serving(server_engine(run), model, port, collector.otlp_port, logs))
            warm_up(servers[run], (collector.program,))
        since_ns, seen = time.time_ns(), []
        for number, plan in enumerate(plans):
            for run in runs if number % 2 == 0 else list(reversed(runs)):
                job = Job(servers[run].target, changed(plan, run))
                seen += send_load(job, (collector.program, servers[run].program))
    window = Window(since_ns, time.time_ns())
    await_traces(database, window, seen, lambda _done, _text="": None)
    return [Recorded(run, window, Filters(instance=run.instance)) for run in runs]


def server_engine(run: Run) -> Engine:
    """Return how the demo's server is started for a run."""
    usual = transformers_engine()

    def command(model: str, port: int) -> list[str]:
        words = [word for word in usual.command(model, port) if not word.startswith("--cb-num-blocks")]
        return [*words, f"--cb-num-blocks={run.batch}"]

    named = {"OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={run.instance}"}
    return replace(usual, command=command, environment={**usual.environment, **named})


def changed(plan: tuple[PlannedRequest, ...], run: Run) -> tuple[PlannedRequest, ...]:
    """Return the load of a run."""
    return tuple(
        replace(item, at_s=item.at_s / run.rate, max_tokens=max(1, math.ceil(item.max_tokens * run.output_length)))
        for item in plan
    )


@contextmanager
def recorded(folder: Path, make: Make, runs: Sequence[Run]) -> Iterator[tuple[Client, list[Recorded]]]:
    """Make the runs; while the block lasts, their spans can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    with collecting(folder, folder) as collector:
        database = connect(collector.clickhouse_url)
        try:
            yield database, make(runs, collector, database, folder)
        finally:
            database.close()
