"""One run of the demo, from the model's file to the proof that the traces are right.

Out:    `DemoResult`; the spans stay in the data folder.
Errors: UserError, `ModelError`, `ProgramError`; whatever happens, every started program is stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tailspan_queries.client import Client, connect
from tailspan_queries.demo.agreement import Agreement, TracedRequest, compare
from tailspan_queries.demo.client import Observation
from tailspan_queries.demo.collector import collecting
from tailspan_queries.demo.driver import send_load
from tailspan_queries.demo.engines import DEFAULT_ENGINE, ENGINES
from tailspan_queries.demo.load import Job
from tailspan_queries.demo.model import TOTAL_STEPS, prepare_model
from tailspan_queries.demo.processes import Program, ProgramError, free_ports, read_lines
from tailspan_queries.demo.progress import Progress
from tailspan_queries.demo.reports import Reports, read_reports, run_query
from tailspan_queries.demo.server import SERVER_LOG, SERVICE, Server, serving
from tailspan_queries.demo.workload import PlannedRequest, plan_load
from tailspan_queries.times import Window

ARRIVAL_S = 30.0
"""How long the spans of the last request may take from the agent into SQL."""
WARM_UP = 3
WARM_UP_SEED = 99


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    requests: int
    rate_per_s: float
    seed: int
    data: Path
    engine: str = DEFAULT_ENGINE


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything the demo shows."""

    options: Options
    engine: str
    window: Window
    agreement: Agreement
    reports: Reports
    errors: tuple[str, ...]
    load_s: float


def run_demo(options: Options, progress: Progress) -> DemoResult:
    """Run the demo once."""
    engine = ENGINES[options.engine]()
    with progress.phase("model", TOTAL_STEPS) as step:
        model = prepare_model(lambda done, text: step(done, text))
    logs = options.data / "demo"
    logs.mkdir(parents=True, exist_ok=True)
    plan = plan_load(options.requests, options.rate_per_s, options.seed)
    with ExitStack() as stack:
        with progress.phase("collector") as step:
            collector = stack.enter_context(collecting(options.data, logs))
        with ExitStack() as served:
            progress.note(f"{engine.title} takes {engine.usual_start} to start; its log: {logs / SERVER_LOG}")
            with progress.phase("model server") as step:
                (port,) = free_ports(1)
                serve = serving(engine, model, port, collector.otlp_port, logs, partial(step, 0))
                server = served.enter_context(serve)
                warm_up(server, (collector.program,))
            since_ns = time.time_ns()
            observations, load_s = drive(server, plan, (collector.program,), progress)
            write_observations(logs / "observations.jsonl", observations)
            progress.note("stopping the model server; its spans are delivered before it ends")
        server.program.check_stopped()
        window = Window(since_ns, time.time_ns())
        with progress.phase("traces", len(plan)) as step:
            database = connect(collector.clickhouse_url)
            try:
                traced = await_traces(database, window, observations, step)
                reports = read_reports(database, window, SERVICE)
            finally:
                database.close()
    return DemoResult(
        options=options,
        engine=engine.title,
        window=window,
        agreement=compare(observations, traced),
        reports=reports,
        errors=tuple(sorted({observation.error for observation in observations if observation.error})),
        load_s=load_s,
    )


def warm_up(server: Server, needed: Sequence[Program]) -> None:
    """Send a few requests that nobody counts, so that the first measured one does not pay for lazy set-up."""
    plan = plan_load(WARM_UP, 4.0, WARM_UP_SEED)
    seen = send_load(Job(server.target, plan, sampled=False), (*needed, server.program))
    failed = [observation.error for observation in seen if observation.error]
    if failed:
        log = server.program.log
        raise ProgramError(f"the model server does not answer: {failed[0]} (log: {log})", read_lines(log))


def drive(
    server: Server, plan: Sequence[PlannedRequest], needed: Sequence[Program], progress: Progress
) -> tuple[list[Observation], float]:
    """Send the measured load; return what the client saw and how many seconds it took."""
    begin = time.monotonic()
    job = Job(server.target, tuple(plan))
    with progress.phase("load", len(plan)) as step:
        observations = send_load(
            job, (*needed, server.program), lambda done: step(done, f"{done} of {len(plan)} requests answered")
        )
    return observations, time.monotonic() - begin


def write_observations(file: Path, observations: Sequence[Observation]) -> None:
    """Keep what the client saw, one JSON object a line, so that the comparison can be made again."""
    file.write_text("".join(f"{json.dumps(asdict(observation))}\n" for observation in observations), encoding="utf-8")


def await_traces(
    database: Client, window: Window, observations: Sequence[Observation], step: Progress.Step
) -> list[TracedRequest]:
    """Return the traced requests as soon as every sent one is there, or what there is when the time is up."""
    wanted = {observation.trace_id for observation in observations}
    deadline = time.monotonic() + ARRIVAL_S
    while True:
        traced = read_requests(database, window)
        arrived = len(wanted.intersection(request.trace_id for request in traced))
        step(arrived, f"{arrived} of {len(wanted)} traces can be queried")
        if arrived == len(wanted) or time.monotonic() > deadline:
            return traced
        time.sleep(0.3)


def read_requests(database: Client, window: Window) -> list[TracedRequest]:
    """Read the demo's requests of the window with their stages."""
    rows = run_query(database, "requests", {**window.parameters, "service": SERVICE})
    return [TracedRequest(**{**row, "stages": tuple(map(tuple, row["stages"]))}) for row in rows]
