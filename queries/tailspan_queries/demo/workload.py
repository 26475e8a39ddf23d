"""The demo's load: when each request comes, what it asks and how long its answer may be.

Fitted to real traffic of chat services, whose statistics are:

=======================================  =====================  ===================
public trace                             inter-arrival CV       tokens, p50 / p99
=======================================  =====================  ===================
Azure LLM inference 2023, conversation   1.1                    prompt 1020 / 4142
                                                                output  129 / 601
Mooncake (FAST'25), conversation         3.0                    (longer than a CPU can serve)
=======================================  =====================  ===================

* Arrivals: a gamma process. Its shape is 1/CV^2; with Mooncake's CV of 3.0 that is 0.111, so requests come in bursts
  with pauses between them. The gaps are scaled so that the mean rate is exactly the asked one.
* Lengths: log-normal. The median is Azure's; sigma = ln(p99/p50)/2.326 gives 0.602 for prompts and 0.662 for outputs.
* Scaled to a CPU: prompts are 1/16 and outputs 1/8 as long (medians of 64 and 16 tokens); the shapes stay.

Out:    a tuple of `PlannedRequest`, the same for the same seed.
Units:  `at_s` seconds after the start of the load; lengths in tokens, as an estimate for prompts and as an upper
        bound for outputs (the model may end earlier).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailspan_queries.demo.corpus import NOTES, QUESTIONS

NORMAL_P99 = 2.326
ARRIVAL_CV = 3.0
PROMPT_SCALE, OUTPUT_SCALE = 1 / 16, 1 / 8
STREAMED_SHARE = 0.8
TEMPLATE_TOKENS = 31
"""What the chat template adds to a prompt of the demo's model."""
TOKENS_PER_WORD = 1.2
MAX_OUTPUT_TOKENS = 160


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths in tokens, given by two percentiles that a trace publishes."""

    p50: float
    p99: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.p99 / self.p50) / NORMAL_P99


AZURE_PROMPT = LogNormal(p50=1020, p99=4142)
AZURE_OUTPUT = LogNormal(p50=129, p99=601)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the load, before it is sent."""

    number: int
    at_s: float
    prompt: str
    max_tokens: int
    stream: bool


def plan_load(requests: int, rate_per_s: float, seed: int) -> tuple[PlannedRequest, ...]:
    """Return `requests` requests at a mean rate of `rate_per_s`, the first at 0."""
    random = np.random.default_rng(seed)
    arrivals = arrival_times_s(random, requests, rate_per_s)
    prompts = lengths(random, AZURE_PROMPT, PROMPT_SCALE, requests)
    outputs = lengths(random, AZURE_OUTPUT, OUTPUT_SCALE, requests)
    streamed = random.random(requests) < STREAMED_SHARE
    return tuple(
        PlannedRequest(
            number=number,
            at_s=float(arrivals[number]),
            prompt=compose_prompt(random, int(prompts[number])),
            max_tokens=int(min(outputs[number], MAX_OUTPUT_TOKENS)),
            stream=bool(streamed[number]),
        )
        for number in range(requests)
    )


def arrival_times_s(random: np.random.Generator, requests: int, rate_per_s: float) -> np.ndarray:
    """Return the times of a gamma process, scaled to the exact mean rate; shape (requests,), seconds."""
    gaps = random.gamma(1 / ARRIVAL_CV**2, size=requests)
    gaps[0] = 0.0
    total = gaps.sum()
    if total > 0:
        gaps *= (requests - 1) / rate_per_s / total
    return np.cumsum(gaps)


def lengths(random: np.random.Generator, law: LogNormal, scale: float, count: int) -> np.ndarray:
    """Return `count` scaled log-normal lengths of at least 1; shape (count,), tokens."""
    values = random.lognormal(math.log(law.p50 * scale), law.sigma, count)
    return np.maximum(1, np.rint(values)).astype(np.int64)


def compose_prompt(random: np.random.Generator, tokens: int) -> str:
    """Return a question, after as many notes as make up about `tokens` tokens with the chat template."""
    question = QUESTIONS[int(random.integers(len(QUESTIONS)))]
    missing = tokens - TEMPLATE_TOKENS - _tokens(question)
    notes: list[str] = []
    while missing > 0:
        note = NOTES[int(random.integers(len(NOTES)))]
        notes.append(note)
        missing -= _tokens(note)
    if not notes:
        return question
    return f"Read these notes first. {' '.join(notes)} Now answer: {question}"


def _tokens(text: str) -> float:
    return len(text.split()) * TOKENS_PER_WORD
