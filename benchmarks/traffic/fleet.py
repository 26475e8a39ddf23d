"""The services of the made-up traffic: which trace each replays, on which model, and how fast that is."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.traffic import arrivals


@dataclass(frozen=True, slots=True)
class Service:
    """One service with a model of its own; workers are as many as its requests need.

    `share` is its part of all requests; `utilisation` the part of the time in which its engine is busy, which sets how
    long requests queue; times are those of an idle engine and grow with the batch. Workers are so many that each keeps
    at most `most_of_trace` of its trace; what is left over is thinned out by the tide, and by a change of the mix.
    """

    name: str
    model: str
    trace: str
    share: float
    utilisation: float
    prefill_tokens_per_s: float
    token_ms: float
    low_priority_share: float = 0.0
    lora: str = ""
    most_of_trace: float = 0.85


FLEET = (
    Service("chat", "llama-3.1-8b", arrivals.CONV, 0.20, 0.60, 16_000, 18, lora="support-v2"),
    Service("assistant", "llama-3.1-8b", arrivals.CONV, 0.15, 0.55, 16_000, 18),
    Service("batch", "qwen3-14b", arrivals.CONV, 0.15, 0.85, 11_000, 24, low_priority_share=0.3),
    # Enough is left over for longer requests to come three times as often.
    Service("code", "qwen2.5-coder-7b", arrivals.CODE, 0.12, 0.20, 18_000, 15, most_of_trace=0.35),
    Service("search", "qwen2.5-coder-7b", arrivals.CODE, 0.08, 0.20, 18_000, 15),
    Service("summarize", "llama-3.1-70b", arrivals.MOONCAKE, 0.15, 0.70, 9_000, 28),
    Service("agents", "llama-3.1-70b", arrivals.MOONCAKE, 0.15, 0.70, 9_000, 28),
)


def worker_count(service: Service, trace: arrivals.Arrivals, requests: int, length_s: float) -> int:
    """Return how many workers replay the trace; at least two, so that one can be slow beside another."""
    return max(2, -int(-requests // (service.most_of_trace * trace.rate * length_s)))
