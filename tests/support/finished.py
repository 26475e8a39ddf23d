"""Finished requests and steps as the agent's join hands them out, and a pipeline to put them into."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from tailspan import attributes as attr
from tailspan.agent.decode import Step, Value
from tailspan.agent.join import Finished
from tailspan.agent.model import EngineState, Interval, Membership, RequestState
from tailspan.agent.pipeline import Pipeline
from tailspan.agent.settings import AgentSettings
from tailspan.agent.span import Span, readable
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.steps import FinishedStep

MS = 1_000_000


def finished(
    e2e_ms: float = 100.0, *, seed: random.Random | None = None, model: str = "smol", outcome: str = "ok",
    error: str = "", tokens: int = 3, parent: int = 0, flags: int = 1, **attributes: Value,
) -> Finished:  # fmt: skip
    """Return a request: 2 ms receive, 3 tokenize, 1 dispatch, 14 queue, 20 prefill, then a token each 10 ms."""
    draw = seed if seed is not None else random.Random(7)
    t = 1_000 * MS
    engine = EngineState("engine-1", "transformers", model)
    steps = {
        number: Step("engine-1", number, t + (20 if not number else 30 + 10 * number) * MS,
                     t + (40 + 10 * number) * MS, 0, 1, 1, 0, 0, None)
        for number in range(tokens)
    }  # fmt: skip
    request = RequestState(
        key=draw.getrandbits(64) | 1,
        name="POST /v1/chat/completions",
        trace_id=draw.getrandbits(128) | 1,
        parent_id=parent,
        flags=flags,
        begin_ns=t,
        attributes={
            attr.GEN_AI_MODEL: model,
            attr.GEN_AI_OPERATION: "chat",
            attr.GEN_AI_INPUT_TOKENS: 17,
            attr.GEN_AI_OUTPUT_TOKENS: tokens,
            **attributes,
        },
        measured=[Interval("receive", t, t + 2 * MS, MS), Interval("tokenize", t + 2 * MS, t + 5 * MS, MS)],
        engine="engine-1",
        queued_ns=t + 6 * MS,
        memberships=[Membership(0, t + 20 * MS, 0)],
        first_token_step=0,
        first_token_ns=t + 40 * MS,
        finish_step=tokens - 1,
        finish_ns=t + (40 + 10 * (tokens - 1)) * MS,
        first_chunk_ns=t + 41 * MS,
        end_ns=t + round(e2e_ms * MS),
        outcome=outcome,
        error_type=error,
    )
    return Finished(request, engine, steps)


def finished_step(number: int, engine: str = "engine-1", idle_ns: int | None = 2 * MS) -> FinishedStep:
    """Return a step of 8 requests and 20 ms."""
    step = Step(engine, number, number * 30 * MS, number * 30 * MS + 20 * MS, 0, 8, 8, 0, 0, None)
    return FinishedStep(step, EngineState(engine, "transformers", "smol"), (), idle_ns)


class Box:
    """An outbox that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.exported = 5
        self.dropped = 1

    def put(self, spans: Sequence[Span]) -> None:
        self.spans += map(readable, spans)


def pipeline(settings: AgentSettings | None = None, *boxes: Box, **options: Any) -> Pipeline:
    """Return a pipeline of the settings, else of the environment's."""
    return Pipeline(SpanBuilder(Resource({"service.name": "svc"}), 0), boxes, settings, **options)  # type: ignore[arg-type]
