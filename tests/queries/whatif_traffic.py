"""A made-up engine, stepped one token at a time, that can be run again with something changed.

It shares no code with the model that predicts it: a plain loop over steps and requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tests.queries import traffic

MS = 1_000_000
MODEL, SERVICE = "mistral", "whatif"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine is set, and what it is asked."""

    engine_id: str = "llm-0"
    requests: int = 400
    gap_ms: float = 80.0
    max_batch: int = 6
    max_tokens: int = 256
    decode: float = 1.0
    prefill: float = 1.0
    tokenize: float = 1.0
    output_length: float = 1.0
    noise: float = 0.15
    seed: int = 1


@dataclass(slots=True)
class Sequence:
    """A request while it is in the engine, and what became of it."""

    start_ns: float
    tokenize_ns: float
    prompt: int
    output: int
    aborted: str = ""
    rest: int = 0
    made: int = 0
    joined_ns: float = 0.0
    first_ns: float = 0.0
    last_ns: float = 0.0
    steps: list[int] = field(default_factory=list)
    decode_step: int = 0

    @property
    def arrival_ns(self) -> float:
        """When the engine has it."""
        return self.start_ns + self.tokenize_ns


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was made."""

    number: int
    begin_ns: float
    end_ns: float
    prefill_tokens: int
    decodes: int
    requests: int
    waiting: int


def run(settings: Settings, begin_ns: int) -> tuple[list[Sequence], list[Step]]:
    """Run the engine until all requests are done."""
    rng = np.random.default_rng(settings.seed)
    noise = np.random.default_rng(settings.seed + 100)
    starts = begin_ns + np.cumsum(rng.gamma(0.4, settings.gap_ms / 0.4, settings.requests)) * MS
    waiting = []
    for number, start in enumerate(starts):
        output = int(rng.integers(1, 40))
        item = Sequence(
            start, rng.uniform(1, 3) * MS / settings.tokenize, int(rng.integers(5, 400)),
            max(1, int(np.rint(output * settings.output_length))),
        )  # fmt: skip
        item.output = 0 if number % 50 == 7 else item.output
        item.aborted = "queue" if number % 50 == 9 else ""
        item.rest = item.prompt
        waiting.append(item)
    done = [item for item in waiting if item.aborted]
    waiting = sorted((item for item in waiting if not item.aborted), key=lambda item: item.arrival_ns)
    running: list[Sequence] = []
    steps: list[Step] = []
    now = float(begin_ns)
    while waiting or running:
        if not running:
            now = max(now, waiting[0].arrival_ns)
        now = make_step(settings, noise, running, waiting, steps, now)
        done += [item for item in running if item.last_ns]
        running[:] = [item for item in running if not item.last_ns]
    return done, steps


def make_step(
    settings: Settings, noise: np.random.Generator, running: list[Sequence], waiting: list[Sequence],
    steps: list[Step], begin_ns: float,
) -> float:  # fmt: skip
    """Plan and compute one step; return its end."""
    number = len(steps) + 1
    decoding = [item for item in running if not item.rest]
    budget = settings.max_tokens - len(decoding)
    while waiting and waiting[0].arrival_ns <= begin_ns and len(running) < settings.max_batch:
        if sum(item.rest for item in running) >= budget:
            break
        item = waiting.pop(0)
        item.joined_ns = begin_ns
        running.append(item)
    prompts = []
    for item in running:
        if item.rest and budget > 0:
            count = min(item.rest, budget)
            budget -= count
            prompts.append((item, count))
    tokens = sum(count for _, count in prompts)
    decode_ms = (8 + 0.5 * len(decoding)) / settings.decode if decoding else 8 / settings.prefill
    took = decode_ms + (1.0 * bool(tokens) + 0.03 * tokens) / settings.prefill
    end_ns = begin_ns + took * MS * noise.lognormal(-(settings.noise**2) / 2, settings.noise)
    left = sum(item.arrival_ns <= begin_ns for item in waiting)
    steps.append(Step(number, begin_ns, end_ns, tokens, len(decoding), len(decoding) + len(prompts), left))
    for item in decoding:
        item.steps.append(number)
        item.decode_step = item.decode_step or number
        item.made += 1
    for item, count in prompts:
        item.steps.append(number)
        item.rest -= count
        if not item.rest:
            item.first_ns = end_ns
            item.made += 1
    for item in running:
        if not item.rest and item.made >= item.output:
            item.last_ns = end_ns
    return end_ns


def request_of(settings: Settings, item: Sequence, number: int) -> traffic.Request:
    """Return what is recorded of a request."""
    engine: dict[str, str | int | float | bool] = {attributes.ENGINE_ID: settings.engine_id}
    stages = [traffic.Stage("tokenize", round(item.tokenize_ns))]
    if item.aborted:
        stages.append(traffic.Stage("queue", 50 * MS))
    else:
        last = item.steps[-1]
        prefill_last = item.decode_step - 1 if item.decode_step else last
        stages += [
            traffic.Stage("queue", round(item.joined_ns - item.arrival_ns)),
            traffic.Stage(
                "prefill", round(item.first_ns - item.joined_ns),
                extra={**engine, attributes.STEP_FIRST: item.steps[0], attributes.STEP_LAST: prefill_last},
            ),
        ]  # fmt: skip
        if item.decode_step:
            keys = {**engine, attributes.STEP_FIRST: item.decode_step, attributes.STEP_LAST: last}
            stages.append(traffic.Stage("decode", round(item.last_ns - item.first_ns), extra=keys))
    stages.append(traffic.Stage("respond", 200_000))
    identity = number + 1
    return traffic.Request(
        trace_id=(settings.seed << 64 | identity).to_bytes(16, "big"),
        span_id=identity.to_bytes(8, "big"),
        start_ns=round(item.start_ns),
        model=MODEL,
        service=SERVICE,
        instance=settings.engine_id,
        stages=tuple(stages),
        gap_ns=0,
        input_tokens=item.prompt,
        output_tokens=item.output if not item.aborted else 0,
        failed=bool(item.aborted),
        engine_id=settings.engine_id,
    )


def spans(settings: Settings, done: list[Sequence], steps: list[Step]) -> Iterator[tuple[str, str, Span]]:
    """Yield the spans of requests and steps."""
    for number, item in enumerate(done):
        yield from traffic.request_spans(request_of(settings, item, number))
    for step in steps:
        identity = (1 << 80 | settings.seed << 64 | step.number).to_bytes(16, "big")
        keys: dict[str, str | int | float | bool] = {
            attributes.ROLE: attributes.ROLE_STEP,
            attributes.ENGINE_ID: settings.engine_id,
            attributes.GEN_AI_MODEL: MODEL,
            attributes.STEP_NUMBER: step.number,
            attributes.STEP_REQUESTS: step.requests,
            attributes.STEP_PREFILL_TOKENS: step.prefill_tokens,
            attributes.STEP_DECODE_TOKENS: step.decodes,
            attributes.STEP_WAITING: step.waiting,
            attributes.STEP_PREEMPTED: 0,
            attributes.STEP_IDLE_NS: 0,
            attributes.STEP_KV_USAGE: 0.3,
        }
        wall_ns = round(step.end_ns) - round(step.begin_ns)
        yield (
            SERVICE,
            settings.engine_id,
            traffic.make_span(identity, identity[8:], b"", "step", round(step.begin_ns), wall_ns, keys),
        )
