"""Made-up engines with continuous batching: steps whose times are known, and the requests that took part in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tests.queries import traffic

MS = 1_000_000
CHUNK_TOKENS = 256
MAX_BATCH = 12


@dataclass(slots=True)
class Step:
    """One step of an engine, with what the simulation knows of it."""

    engine: Engine
    number: int
    begin_ns: int
    end_ns: int
    idle_ns: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    preempted: int
    joined: int
    weight: float = 1.0

    @property
    def wall_ns(self) -> int:
        """Wall time."""
        return self.end_ns - self.begin_ns


@dataclass(slots=True)
class Sequence:
    """A request while it is in the engine."""

    prompt_tokens: int
    output_tokens: int
    arrival_ns: int
    cached_tokens: int = 0
    to_prefill: int = 0
    sampled: int = 0
    parts: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    """Stages so far: name, first and last step, begin and end in ns."""
    evicted_ns: int | None = None


@dataclass(eq=False, slots=True)
class Engine:
    """One engine: how fast it is, and how it behaves."""

    engine_id: str
    model: str
    base_ms: float
    seed: int
    overlap_ns: int = 0
    gpu_share: float | None = None
    dropped_ratio: float = 0.0
    steps: list[Step] = field(default_factory=list)
    done: list[Sequence] = field(default_factory=list)

    @property
    def stored(self) -> list[Step]:
        """The steps that are sent."""
        return [step for step in self.steps if step.weight > 0]


def simulate(engine: Engine, begin_ns: int, requests: int) -> None:
    """Run an engine until all requests are done."""
    rng = np.random.default_rng(engine.seed)
    arrivals = begin_ns + np.cumsum(rng.exponential(60 * MS, requests)).astype(np.int64)
    waiting = [
        Sequence(int(rng.integers(5, 900)), int(rng.integers(1, 60)), int(at), int(rng.integers(0, 4)))
        for at in arrivals
    ]
    running: list[Sequence] = []
    number, clock_ns = 0, begin_ns
    while waiting or running:
        here = [item for item in waiting if item.arrival_ns <= clock_ns]
        if not running and not here:
            clock_ns = waiting[0].arrival_ns
            continue
        rests = bool(engine.steps) and clock_ns == engine.steps[-1].end_ns and not engine.overlap_ns
        idle_ns = int(rng.exponential(2 * MS)) if rests else 0
        idle_ns += 40 * MS * (idle_ns > 0 and rng.random() < 0.02)
        preempted = 0
        if len(running) > 3 and rng.random() < 0.03:
            victim = running.pop()
            victim.evicted_ns = clock_ns
            waiting.insert(0, victim)
            preempted = 1
        elif here and len(running) < MAX_BATCH:
            joining = here[0]
            waiting.remove(joining)
            running.append(joining)
            joining.to_prefill = joining.prompt_tokens + joining.sampled - joining.cached_tokens
        number += 1
        clock_ns = make_step(engine, rng, running, number, clock_ns + idle_ns, idle_ns, len(here), preempted)
        engine.done += [item for item in running if item.sampled >= item.output_tokens]
        running = [item for item in running if item.sampled < item.output_tokens]
    for step in engine.steps:
        if rng.random() < engine.dropped_ratio:
            step.weight = 0.0
        elif engine.dropped_ratio:
            step.weight = 1 / (1 - engine.dropped_ratio)


def make_step(
    engine: Engine,
    rng: np.random.Generator,
    running: list[Sequence],
    number: int,
    begin_ns: int,
    idle_ns: int,
    waiting: int,
    preempted: int,
) -> int:
    """Compute one step over the batch; return when it ended."""
    begin_ns -= engine.overlap_ns if engine.steps and begin_ns == engine.steps[-1].end_ns else 0
    decoding = [item for item in running if not item.to_prefill]
    budget, prefills = CHUNK_TOKENS, []
    for item in running:
        if item.to_prefill and budget:
            tokens = min(budget, item.to_prefill)
            budget -= tokens
            prefills.append((item, tokens))
    tokens = sum(count for _, count in prefills)
    took_ms = engine.base_ms + 0.4 * len(decoding) + 0.02 * tokens + rng.exponential(0.5)
    end_ns = begin_ns + round(took_ms * MS)
    joined = sum(1 for item, _ in prefills if not item.parts or item.parts[-1][0] != "prefill")
    for item in decoding:
        member(item, "decode", number, begin_ns, end_ns)
        item.sampled += 1
    for item, count in prefills:
        member(item, "prefill", number, begin_ns, end_ns)
        item.to_prefill -= count
        if not item.to_prefill:
            item.sampled += 1
    engine.steps.append(
        Step(engine, number, begin_ns, end_ns, idle_ns, tokens, len(decoding), waiting, preempted, joined)
    )
    return end_ns


def member(item: Sequence, stage: str, number: int, begin_ns: int, end_ns: int) -> None:
    """Note that a request took part in a step: its stage goes on, or the one before ends where this one begins."""
    if item.parts and item.parts[-1][0] == stage and item.evicted_ns is None:
        name, first, _, since_ns, _ = item.parts[-1]
        item.parts[-1] = (name, first, number, since_ns, end_ns)
        return
    if item.evicted_ns is not None:
        item.parts.append(("preempted", 0, 0, item.evicted_ns, begin_ns))
        item.evicted_ns = None
    since_ns = item.parts[-1][4] if item.parts else begin_ns
    item.parts.append((stage, number, number, since_ns, end_ns))


def requests_of(engine: Engine) -> list[traffic.Request]:
    """Return the requests of an engine as plain records."""
    rng = np.random.default_rng(engine.seed + 1000)
    found = []
    for item in engine.done:
        stages = [traffic.Stage("queue", max(item.parts[0][3] - item.arrival_ns, 0))]
        end_ns = item.parts[0][3]
        for name, first, last, begin_ns, until_ns in item.parts:
            keys: dict[str, str | int | float | bool] = {}
            if name != "preempted":
                keys = {
                    attributes.ENGINE_ID: engine.engine_id,
                    attributes.STEP_FIRST: first,
                    attributes.STEP_LAST: last,
                }
            if name == "prefill":
                keys[attributes.GEN_AI_INPUT_TOKENS] = item.prompt_tokens
                keys[attributes.CACHED_TOKENS] = item.cached_tokens
            # Between an eviction and the last step of a stage there may be idle time, which belongs to that stage.
            stages[-1] = replace(stages[-1], wall_ns=stages[-1].wall_ns + begin_ns - end_ns)
            stages.append(traffic.Stage(name, until_ns - begin_ns, extra=keys))
            end_ns = until_ns
        stages.append(traffic.Stage("respond", 100_000))
        found.append(
            traffic.Request(
                trace_id=rng.bytes(16),
                span_id=rng.bytes(8),
                start_ns=min(item.arrival_ns, item.parts[0][3]),
                model=engine.model,
                service="vllm",
                instance=f"{engine.engine_id}.host",
                stages=tuple(stages),
                gap_ns=0,
                input_tokens=item.prompt_tokens,
                output_tokens=item.output_tokens,
                engine_id=engine.engine_id,
            )
        )
    return found


def step_spans(engine: Engine) -> Iterator[tuple[str, str, Span]]:
    """Yield the spans of the steps that are sent."""
    for step in engine.stored:
        identity = engine.seed << 32 | step.number
        keys: dict[str, str | int | float | bool] = {
            attributes.ROLE: attributes.ROLE_STEP,
            attributes.ENGINE_ID: engine.engine_id,
            attributes.GEN_AI_MODEL: engine.model,
            attributes.STEP_NUMBER: step.number,
            attributes.STEP_REQUESTS: step.decode_tokens + (step.prefill_tokens > 0),
            attributes.STEP_PREFILL_TOKENS: step.prefill_tokens,
            attributes.STEP_DECODE_TOKENS: step.decode_tokens,
            attributes.STEP_WAITING: step.waiting,
            attributes.STEP_PREEMPTED: step.preempted,
            attributes.STEP_IDLE_NS: step.idle_ns,
            attributes.STEP_KV_USAGE: 0.5,
            **traffic.weight_key(step.weight),
        }
        if engine.gpu_share is not None:
            keys[attributes.GPU_NS] = round(step.wall_ns * engine.gpu_share)
        span = traffic.make_span(
            identity.to_bytes(16, "big"), identity.to_bytes(8, "big"), b"", "step", step.begin_ns, step.wall_ns, keys
        )
        for number in range(step.joined):
            link = span.links.add(trace_id=identity.to_bytes(16, "big"), span_id=(number + 1).to_bytes(8, "big"))
            link.attributes.extend(traffic.key_values({attributes.STEP_LINK: "join"}))
        yield "vllm", f"{engine.engine_id}.host", span


def fleet(begin_ns: int) -> list[Engine]:
    """Return five engines of two models after their run: plain, fast, overlapping, sampled, and one of few requests."""
    engines = [
        Engine("engine-a", "llama", 10.0, 1),
        Engine("engine-b", "llama", 4.0, 2, gpu_share=0.5),
        Engine("engine-c", "qwen", 12.0, 3, overlap_ns=1_500_000),
        Engine("engine-d", "qwen", 8.0, 4, dropped_ratio=0.5),
        Engine("engine-e", "qwen", 8.0, 5),
    ]
    for engine, requests in zip(engines, (250, 250, 150, 150, 3), strict=True):
        simulate(engine, begin_ns, requests)
    return engines
