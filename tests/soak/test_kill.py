"""kill -9 at random moments: what was recorded arrives once, what was in flight says how far it came, nothing stays."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailspan import attributes as attr
from tests.soak.worker import Worker
from tests.support.otlp_sink import OtlpSink, attributes_of

PROGRESS = "BQJFE"
"""The order of a request's lines in the log."""
LAST_STAGE = {"B": None, "Q": "queue", "J": "prefill", "F": "decode"}
THREADS = 3


def test_a_few_kills(tmp_path: Path) -> None:
    """Five workers are killed at random moments, two at a time; see the long test."""

    def kill(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        worker = Worker(folder)
        try:
            with OtlpSink() as sink:
                kill_one(worker, sink, number, random.Random(number))
        finally:
            worker.end_all()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill, range(5)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_kills(worker: Worker, sink: OtlpSink) -> None:
    """Every record written before the kill is exported once; in-flight requests are lost in the stage they were in."""
    seed = int(os.environ.get("TAILSPAN_SOAK_SEED", time.time_ns() % 10**6))
    print(f"TAILSPAN_SOAK_SEED={seed}")
    for number in range(200):
        kill_one(worker, sink, number, random.Random(seed + number))


def kill_one(worker: Worker, sink: OtlpSink, number: int, rng: random.Random) -> None:
    """Start a worker, kill it, check what arrives."""
    sink.requests.clear()
    log = worker.folder / f"log-{number}"
    through_run = number % 2 == 0
    child = worker.start(
        "serve_until_killed.py", str(log), through_run=through_run, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint
    )
    pid = wait_for_pid(log)
    time.sleep(rng.random() * 0.4)
    os.kill(pid, signal.SIGKILL)
    assert child.wait(40) == (128 + signal.SIGKILL if through_run else -signal.SIGKILL)
    worker.wait_clean()
    check(log, sink.spans, f"round {number}")


def wait_for_pid(log: Path) -> int:
    """Return the worker's pid once all its threads run."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if log.exists():
            for line in log.read_text().splitlines():
                if line.startswith("P "):
                    return int(line[2:])
        time.sleep(0.005)
    raise TimeoutError("the worker did not start")


def check(log: Path, spans: list[Span], where: str) -> None:
    """Compare the spans with the worker's own log."""
    progress: dict[str, str] = {}
    steps: Counter[tuple[str, int]] = Counter()
    for line in log.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "S":
            engine, _, step = rest.rpartition(" ")
            steps[engine, int(step)] += 1
        elif kind != "P":
            progress[rest] = kind
    roots = {span.span_id.hex(): span for span in spans if span.kind == Span.SPAN_KIND_SERVER}
    counts = Counter(span.span_id.hex() for span in spans if span.kind == Span.SPAN_KIND_SERVER)
    assert {key for key, count in counts.items() if count > 1} == set(), f"{where}: exported twice"
    assert progress.keys() - roots.keys() == set(), f"{where}: never exported"
    assert len(roots.keys() - progress.keys()) <= THREADS, f"{where}: begun, not yet in the log"
    children = Counter(span.parent_span_id.hex() for span in spans if span.parent_span_id)
    assert children.keys() <= roots.keys(), f"{where}: a stage without its request"
    for key, kind in progress.items():
        check_request(roots[key], [s for s in spans if s.parent_span_id.hex() == key], kind, where)
    exported: Counter[tuple[str, int]] = Counter()
    for span in spans:
        attributes = attributes_of(span.attributes)
        if attributes.get(attr.ROLE) == attr.ROLE_STEP:
            exported[attributes[attr.ENGINE_ID], attributes[attr.STEP_NUMBER]] += 1
    assert steps - exported == Counter(), f"{where}: steps never exported"
    unlogged = exported - steps
    assert unlogged.total() <= THREADS, f"{where}: steps exported twice or invented: {unlogged}"


def check_request(root: Span, stages: list[Span], logged: str, where: str) -> None:
    """A request that ended is whole; one in flight is lost, in the stage of its last record or a later one."""
    attributes = attributes_of(root.attributes)
    names = [span.name for span in sorted(stages, key=lambda span: span.start_time_unix_nano)]
    assert len(names) == len(set(names)), f"{where}: {names}"
    outcome = attributes[attr.OUTCOME]
    if logged == "E":
        assert outcome == "ok", f"{where}: ended, but exported as {outcome}"
    if outcome == "ok":
        assert names[:3] == ["queue", "prefill", "decode"], f"{where}: {names}"
        assert attributes[attr.GEN_AI_RESPONSE_ID] == f"request-{root.span_id.hex()}-{'x' * 60}"
        assert logged in "FE", f"{where}: ok after {logged}"
        return
    assert outcome == "lost", f"{where}: {outcome}"
    assert root.status.code == Status.STATUS_CODE_ERROR
    allowed = {stage for kind, stage in LAST_STAGE.items() if PROGRESS.index(kind) >= PROGRESS.index(logged)}
    last = names[-1] if names else None
    # After FINISH and before END it was about to answer.
    assert last in allowed | {"respond"}, f"{where}: lost after {logged}, but its last stage is {last}"
