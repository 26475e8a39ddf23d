"""OTLP requests as the agent sends them for a served model: the same load for every benchmark of the ingest path.

Each request of a user is 9 spans (request, receive, tokenize, dispatch, queue, prefill, decode, detokenize, respond)
and brings 4 engine steps of a batch of 16, of which two have a link (it joins, it leaves). Times, token counts and
outcomes vary as they do in service; spans are built and encoded by the agent's own code.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator

from opentelemetry.sdk.resources import Resource

from tailspan import attributes as attr
from tailspan.agent.decode import Step
from tailspan.agent.encode import message, pack
from tailspan.agent.join import Finished
from tailspan.agent.ledger import ledger
from tailspan.agent.model import EngineState, Interval, Membership, RequestState
from tailspan.agent.span import Span
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.steps import Change, FinishedStep

SPANS_A_REQUEST = 512
"""As the batch processor of every OpenTelemetry SDK sends them."""
_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
_BEGIN_NS = 1_790_000_000 * 10**9
_MS = 1_000_000
_STEPS_OF_A_REQUEST = 4
_INSTANCES = 4


def load(spans: int, seed: int = 1, spans_a_request: int = SPANS_A_REQUEST, steps: bool = True) -> list[bytes]:
    """Return export requests with `spans` spans in all, of engine steps only if `steps`; the same for the same seed."""
    workers = [worker(random.Random(f"{seed}-{number}"), number, steps) for number in range(_INSTANCES)]
    sizes = [min(spans_a_request, spans - first) for first in range(0, spans, spans_a_request)]
    return [
        message(resource, [pack(span) for span in itertools.islice(source, size)])
        for size, (resource, source) in zip(sizes, itertools.cycle(workers), strict=False)
    ]


def worker(draw: random.Random, number: int, steps: bool) -> tuple[Resource, Iterator[Span]]:
    """Return the resource of one instance and its endless spans."""
    resource = Resource(
        {
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.version": "1.43.0",
            "service.name": "chat",
            "service.instance.id": str(uuid.UUID(int=draw.getrandbits(128))),
            "host.name": f"gpu-node-{number:02}",
            "process.pid": 4000 + number,
        }
    )
    return resource, _spans(SpanBuilder(resource, _BEGIN_NS), draw, f"vllm-{4000 + number}-0", steps)


def _spans(builder: SpanBuilder, draw: random.Random, engine: str, steps: bool) -> Iterator[Span]:
    state = EngineState(engine, "vllm", _MODEL)
    now_ns, first_step = 0, 1
    while True:
        now_ns += round(draw.expovariate(1 / 30.0) * _MS)
        finished = _finished(draw, state, now_ns, first_step)
        account = ledger(finished)
        if account is None:
            raise AssertionError("a finished request has a ledger")
        yield from builder.request(account)
        for number in range(first_step, first_step + _STEPS_OF_A_REQUEST if steps else 0):
            yield builder.step(_step(draw, finished, state, number, first_step))
        first_step += _STEPS_OF_A_REQUEST


def _finished(draw: random.Random, state: EngineState, begin_ns: int, first_step: int) -> Finished:
    def ms(median: float, sigma: float = 0.6) -> int:
        return round(draw.lognormvariate(0, sigma) * median * _MS)

    prompt, tokens = 1 + int(draw.lognormvariate(6, 1)), 2 + int(draw.lognormvariate(4.5, 0.7))
    received = begin_ns + ms(0.8)
    tokenized = received + ms(3)
    queued = tokenized + ms(0.6)
    scheduled = queued + ms(40, 1.2)
    first_token = scheduled + ms(60)
    gap_ns = ms(18, 0.2)
    last = first_step + tokens - 1
    steps = {
        first_step + index: Step(state.engine, first_step + index, first_token + (index - 1) * gap_ns,
                                 first_token + index * gap_ns + ms(1), 0, 16, 16, 3, 0, 0.5)
        for index in range(tokens)
    }  # fmt: skip
    last_token = first_token + (tokens - 1) * gap_ns + ms(1)
    text_ready = last_token + ms(0.7)
    request = RequestState(
        key=draw.getrandbits(64) | 1,
        name="POST /v1/chat/completions",
        trace_id=draw.getrandbits(128) | 1,
        begin_ns=begin_ns,
        attributes={
            attr.HTTP_METHOD: "POST",
            attr.HTTP_ROUTE: "/v1/chat/completions",
            attr.URL_PATH: "/v1/chat/completions",
            attr.GEN_AI_OPERATION: "chat",
            attr.GEN_AI_MODEL: _MODEL,
            attr.GEN_AI_STREAM: draw.random() < 0.8,
            attr.GEN_AI_RESPONSE_ID: f"chatcmpl-{draw.getrandbits(128):032x}",
            attr.GEN_AI_INPUT_TOKENS: prompt,
            attr.GEN_AI_OUTPUT_TOKENS: tokens,
        },
        measured=[
            Interval("receive", begin_ns, received, (received - begin_ns) // 2),
            Interval("tokenize", received, tokenized, (tokenized - received) * 9 // 10),
        ],
        engine=state.engine,
        queued_ns=queued,
        memberships=[Membership(first_step, scheduled, 0, samples_token=True)],
        first_token_step=first_step,
        first_token_ns=first_token,
        finish_step=last,
        finish_ns=last_token,
        first_chunk_ns=first_token + ms(0.3),
        text_ready_ns=text_ready,
        text_busy_ns=tokens * ms(0.03),
        end_ns=text_ready + ms(0.4),
        outcome="ok" if draw.random() < 0.99 else "error",
        http_status=200,
    )
    return Finished(request, state, steps)


def _step(draw: random.Random, finished: Finished, state: EngineState, number: int, first: int) -> FinishedStep:
    request = finished.request
    begin_ns = (request.first_token_ns or 0) + (number - first) * 18 * _MS
    step = Step(state.engine, number, begin_ns, begin_ns + round(draw.lognormvariate(0, 0.2) * 17 * _MS),
                draw.randrange(512), draw.randint(8, 24), draw.randint(8, 24), draw.randint(0, 9), 0,
                round(draw.random(), 4))  # fmt: skip
    event = {first: "join", first + _STEPS_OF_A_REQUEST - 1: "finish"}.get(number)
    changes = () if event is None else (Change(request.trace_id, request.key, event),)
    return FinishedStep(step, state, changes, draw.randrange(500_000))
