"""The agent: how many records a second one core takes without a drop, and CPU time a span beside the SDK's.

A writer process fills real rings at a fixed rate with what the hooks of served requests write; the agent, bound to one
core, joins them, builds spans and exports them over OTLP/gRPC to an endpoint in a third process. Drops are records and
whole requests that found no room, from the headers of the rings. CPU time is the agent's from its first record until
everything is exported, start-up excluded; one over it is the rate that one core sustains however long it lasts, where
the rate without drops is what it takes for a few seconds, buffers included.

The peer does the same for the same endpoint with the OpenTelemetry SDK: start a span, set the attributes of a stage,
end it, batch, encode, export.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.agents import AgentProcess, agent
from benchmarks.result import Result
from benchmarks.sink import sink
from tailspan.recorder.reader import RingReader

GOAL_RECORDS_PER_S = 50_000
RATES = (10_000, 20_000, 30_000, 40_000, 50_000, 75_000, 100_000)
SECONDS = 6.0
GOAL_SECONDS = 20.0
ROUNDS = 3
PEER_SPANS = 20_000


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the writer."""

    records: int
    spans: int
    dropped: int
    cpu_s: float


def run() -> list[Result]:
    """Measure both sides in turn, then look for the highest rate without drops."""
    with sink() as endpoint:
        trials, peer_us = [], []
        for _ in range(ROUNDS):
            trials.append(trial(endpoint, GOAL_RECORDS_PER_S / 5, SECONDS))
            peer_us.append(sdk_us_per_span(endpoint))
        per_span_us = statistics.median(t.cpu_s / t.spans for t in trials) * 1e6
        with sampling(0.1):
            sampled = trial(endpoint, GOAL_RECORDS_PER_S / 5, SECONDS)
        goal = trial(endpoint, GOAL_RECORDS_PER_S, GOAL_SECONDS)
        highest = highest_rate(endpoint, goal)
    sdk_us = statistics.median(peer_us)
    return [
        Result(
            "agent.records_per_core_second", goal.records / goal.cpu_s, "1/s", GOAL_RECORDS_PER_S,
            higher_is_better=True,
        ),
        Result(
            "agent.records_per_core_second_when_1_in_10_is_kept", sampled.records / sampled.cpu_s, "1/s",
            GOAL_RECORDS_PER_S, higher_is_better=True,
        ),
        Result("agent.highest_rate_without_drops", highest, "1/s", GOAL_RECORDS_PER_S, higher_is_better=True),
        Result("agent.dropped_at_50k_per_s", goal.dropped, "records and requests", 0),
        Result("agent.cpu_per_span", per_span_us, "us", sdk_us, peer="OTel SDK, span to export", peer_value=sdk_us),
    ]  # fmt: skip


@contextmanager
def sampling(ratio: float) -> Iterator[None]:
    """Keep the spans of a part of the requests; histograms see all of them."""
    os.environ |= {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(ratio)}
    try:
        yield
    finally:
        del os.environ["OTEL_TRACES_SAMPLER"], os.environ["OTEL_TRACES_SAMPLER_ARG"]


def highest_rate(endpoint: str, at_goal: Trial) -> float:
    """Climb until records are dropped; return the last rate at which none were, 0 without one."""
    highest = 0.0
    for rate in RATES:
        dropped = (at_goal if rate == GOAL_RECORDS_PER_S else trial(endpoint, rate, SECONDS)).dropped
        if dropped:
            break
        highest = rate
    return highest


def trial(endpoint: str, rate: float, seconds: float) -> Trial:
    """Write at a rate for some seconds beside an agent on one core."""
    cores = sorted(os.sched_getaffinity(0))
    with agent(endpoint, core=cores[-1]) as running:
        idle_s = running.cpu_s()
        command = [sys.executable, "-m", "benchmarks.writer", str(rate), str(seconds)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            os.sched_setaffinity(writer.pid, {cores[0]})
            written = json.loads(writer.stdout.readline())
            dropped = _dropped(running)
            running.wait_idle()
            cpu_s = running.cpu_s() - idle_s
            writer.stdin.close()
    return Trial(written["records"], written["spans"], dropped, cpu_s)


def _dropped(running: AgentProcess) -> int:
    readers = [RingReader(path) for path in running.directory.glob("*.ring")]
    dropped = sum(reader.dropped + reader.dropped_requests for reader in readers)
    for reader in readers:
        reader.close()
    return dropped


def sdk_us_per_span(endpoint: str) -> float:
    """Return the CPU time of one span of the SDK, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_agent", endpoint]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def _sdk() -> None:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from tailspan import attributes as attr

    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=sys.argv[1], insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=2 * PEER_SPANS, max_export_batch_size=2048))
    tracer = provider.get_tracer("bench")
    begin_s = time.process_time()
    for _ in range(PEER_SPANS):
        span = tracer.start_span("decode")
        span.set_attribute(attr.ROLE, attr.ROLE_STAGE)
        span.set_attribute(attr.STAGE, "decode")
        span.set_attribute(attr.GEN_AI_MODEL, "SmolLM2-135M-Instruct")
        span.set_attribute(attr.BUSY_NS, 1_000_000)
        span.set_attribute(attr.ENGINE_ID, "transformers-1-0")
        span.end()
    provider.force_flush()
    print((time.process_time() - begin_s) / PEER_SPANS * 1e6)
    provider.shutdown()


if __name__ == "__main__":
    _sdk()
