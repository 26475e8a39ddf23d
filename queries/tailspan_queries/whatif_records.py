"""The records of a what-if question: load, engine, change and outcome; plain data without I/O.

Units: nanoseconds, tokens, counts; arrays have one element a request, in the order of arrival at the engine unless
said otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BEFORE_ENGINE = ("tls", "receive", "tokenize", "dispatch")
AFTER_ENGINE = ("detokenize", "respond")
WAITING = ("queue", "preempted")
COMPUTED = ("prefill", "decode")
STAGES = (*BEFORE_ENGINE, "queue", *COMPUTED, "preempted", *AFTER_ENGINE)


@dataclass(frozen=True, slots=True)
class Load:
    """What one engine was asked: `arrival_ns` ascending, from any origin.

    `output_tokens` 0: the request leaves when its prompt is computed. `cached_tokens` are those of the prompt that
    need not be computed, fewer than `prompt_tokens`.
    """

    arrival_ns: Floats
    prompt_tokens: Ints
    cached_tokens: Ints
    output_tokens: Ints


@dataclass(frozen=True, slots=True)
class Limits:
    """What a scheduler lets into a step; what is infinite does not limit."""

    max_batch: float = math.inf
    max_tokens: float = math.inf
    """Prompt and decode tokens of a step; a longer prompt is computed in chunks."""
    kv_tokens: float = math.inf
    """Tokens that the KV cache holds."""
    admit_ratio: float = 1.0
    """Share of the KV cache up to which a waiting request is let in."""
    request_overhead: float = 0.0
    """Tokens of the KV cache that a request takes beyond its own: half-filled blocks, on average."""


@dataclass(frozen=True, slots=True)
class Base:
    """Limits that the engine is known to have had; None is inferred from the steps."""

    max_batch: int | None = None
    max_tokens: int | None = None


UNKNOWN = Base()


@dataclass(frozen=True, slots=True)
class Cost:
    """How long a step takes, ns: the decode part is `base + request * D + context * C`, of D requests that decode with
    C tokens in the KV cache; prompts add `start + token * P`, and have `alone` where nobody decodes."""

    base: float
    request: float = 0.0
    context: float = 0.0
    alone: float = 0.0
    start: float = 0.0
    token: float = 0.0
    tokens_a_step: float = 1.0
    """Tokens that a decode gets in a step; more than 1 with speculative decoding."""
    planned_tokens: float = 1.0
    """Tokens of the step's limit that a decode takes."""

    def faster(self, decode: float = 1.0, prefill: float = 1.0) -> Cost:
        """Return the cost with the parts of decode and prefill so many times as fast."""
        return Cost(
            self.base / decode,
            self.request / decode,
            self.context / decode,
            self.alone / prefill,
            self.start / prefill,
            self.token / prefill,
            self.tokens_a_step,
            self.planned_tokens,
        )


@dataclass(frozen=True, slots=True)
class Noise:
    """Factors of the cost of steps: one after the other, of steps without and with prompts, and by the time of day."""

    decode: Floats
    mixed: Floats
    pace: Floats = field(default_factory=lambda: np.ones(1))
    """From the first arrival on, one for each `pace_ns`: an engine beside which other programs ran was slower then."""
    pace_ns: float = math.inf


@dataclass(frozen=True, slots=True)
class Served:
    """When each request of a load was first scheduled, got its first token (nan without one) and left, ns."""

    joined_ns: Floats
    first_ns: Floats
    last_ns: Floats
    evicted_ns: Floats
    """Time between evictions and coming back."""
    steps: int
    evictions: int
    decoded_tokens: float
    prefilled_tokens: float


@dataclass(frozen=True, slots=True)
class Change:
    """What would be different. Factors are 1 and limits None where nothing is."""

    speedups: tuple[tuple[str, float], ...] = ()
    """Stages, each with how many times as fast it becomes."""
    layers: tuple[str, ...] = ()
    """Parts of the model as the user wrote them; their effect is in the two factors below."""
    layer_prefill: float = 1.0
    layer_decode: float = 1.0
    batch: int | None = None
    step_tokens: int | None = None
    kv_cache: float = 1.0
    arrivals: float = 1.0
    prompt_tokens: float = 1.0
    output_tokens: float = 1.0
    prompt_cache: float | None = None
    """At least this share of each prompt."""

    def factor(self, stage: str) -> float:
        """Return how many times as fast a stage becomes."""
        return math.prod(factor for name, factor in self.speedups if name == stage)

    @property
    def is_only_speedup(self) -> bool:
        """Whether nothing but speed changes, so that Amdahl's law says something."""
        same = Change(self.speedups, self.layers, self.layer_prefill, self.layer_decode)
        return self == same and bool(self.speedups or self.layers)


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one engine as recorded, in the order of arrival at the engine."""

    engine: int
    name: str
    start_ns: Floats
    arrival_ns: Floats
    first_ns: Floats
    last_ns: Floats
    end_ns: Floats
    queue_ns: Floats
    prompt_tokens: Ints
    cached_tokens: Ints
    output_tokens: Ints
    decode_steps: Ints
    first_step: Ints
    decode_step: Ints
    last_step: Ints
    weight: Floats
    counted: NDArray[np.bool_]
    stage_ns: dict[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Steps:
    """Recorded steps of one engine in their order; `period_ns` is what the step and the idle time before it took."""

    step: Ints
    begin_ns: Floats
    """From the origin of the requests' times."""
    period_ns: Floats
    requests: Ints
    prefill_tokens: Ints
    decode_tokens: Ints
    waiting: Ints
    kv_usage: Floats
    weight: Floats


@dataclass(frozen=True, slots=True)
class Extent:
    """What an engine's steps reached, of all steps of the window."""

    engine: int
    steps: int
    max_batch: int
    max_batch_waiting: int
    """Steps of the largest batch after which requests still waited."""
    max_tokens: int
    max_tokens_steps: int
    waiting_steps: int
    max_kv_ratio: float
    preempted: int


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An engine as it is replayed: its requests, limits, costs, and residuals to draw noise from."""

    requests: Requests
    limits: Limits
    cost: Cost
    residuals: Noise
    """Factors of the recorded steps in their order, to draw from, and the pace."""
    explained_ratio: float
    """Share of the variance of step times that the cost explains."""
    notes: tuple[str, ...] = ()
