"""Runs of an engine that `bench_whatif` predicts: the same load, with one thing changed.

In: a folder for the spans, the runs to make. Out: the window of each run, and a client to read them.
Every run is a process of its own under `tailspan run`, and one collector stores them all. Either the device is a clock
(`whatif_sleeper`: real scheduler, times that do not depend on what else runs), or it is the demo's server, SmolLM2-135M
on the CPU, in which a page of the KV cache holds a request, so that the pages are the batch.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from tailspan_queries.demo.workload import AZURE_OUTPUT, AZURE_PROMPT, arrival_times_s, lengths, plan_load
from tailspan_queries.times import Window

SEED = 5
SLEEPER_REQUESTS, SLEEPER_RATE_PER_S, SLEEPER_TOKENS = 240, 7.0, 256
SERVER_REQUESTS, SERVER_RATE_PER_S = 100, 2.0
SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its batch, and what differs from the plain one."""

    name: str
    batch: int
    rate: float = 1.0
    output_length: float = 1.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that was made."""

    run: Run
    window: Window


Make = Callable[[Run, Collector, Client, Path], Recorded]


def sleeper_run(run: Run, collector: Collector, _database: Client, folder: Path) -> Recorded:
    """Run the engine whose device is a clock."""
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
        OMP_NUM_THREADS="1",
    )
    command = [script("tailspan"), "run", "--", sys.executable, "-m", "benchmarks.whatif_sleeper"]
    with (folder / "engine.log").open("w") as log:
        ran = subprocess.run(
            command, input=json.dumps(job), text=True, env=environment, check=True, stdout=subprocess.PIPE, stderr=log
        )
    return Recorded(run, Window(int(ran.stdout.split()[-1]), time.time_ns()))


def server_run(run: Run, collector: Collector, database: Client, folder: Path) -> Recorded:
    """Serve SmolLM2 and send the demo's load."""
    usual = transformers_engine()

    def command(model: str, port: int) -> list[str]:
        words = [word for word in usual.command(model, port) if not word.startswith("--cb-num-blocks")]
        return [*words, f"--cb-num-blocks={run.batch}"]

    engine: Engine = replace(usual, command=command)
    plan = tuple(
        replace(item, at_s=item.at_s / run.rate, max_tokens=max(1, math.ceil(item.max_tokens * run.output_length)))
        for item in plan_load(SERVER_REQUESTS, SERVER_RATE_PER_S, SEED)
    )
    (port,) = free_ports(1)
    model = prepare_model(lambda _done, _text: None)
    with serving(engine, model, port, collector.otlp_port, folder) as server:
        warm_up(server, (collector.program,))
        since_ns = time.time_ns()
        seen = send_load(Job(server.target, plan), (collector.program, server.program))
    window = Window(since_ns, time.time_ns())
    await_traces(database, window, seen, lambda _done, _text="": None)
    return Recorded(run, window)


@contextmanager
def recorded(folder: Path, make: Make, runs: Sequence[Run]) -> Iterator[tuple[Client, list[Recorded]]]:
    """Make the runs one after the other; while the block lasts, their spans can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    with collecting(folder, folder) as collector:
        database = connect(collector.clickhouse_url)
        try:
            made = []
            for run in runs:
                logs = folder / run.name.replace(" ", "-")
                logs.mkdir(exist_ok=True)
                made.append(make(run, collector, database, logs))
                time.sleep(SETTLE_S)
            yield database, made
        finally:
            database.close()
