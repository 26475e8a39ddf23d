"""What the engine's scheduler did, as sentences: batches, chunked prefills, prefix-cache hits and evictions."""

from __future__ import annotations

from tailspan_queries import units
from tailspan_queries.demo.reports import Scheduling


def scheduling_sentences(engine: str, found: Scheduling) -> list[str]:
    """Return a sentence for each part of the scheduler's work."""
    return [batch_sentence(engine, found), prompt_sentence(found), eviction_sentence(found)]


def batch_sentence(engine: str, found: Scheduling) -> str:
    """Say how large the batches were, and how many prompts were computed beside running requests."""
    sentence = (
        f"{engine} made {found.steps:,} steps with {found.requests_mean:.1f} requests on average and "
        f"{found.requests_max:,} at most; {found.mixed_steps:,} of them computed prompts beside running requests. "
        f"Up to {found.waiting_max:,} requests waited"
    )
    if found.kv_usage_max_ratio:
        sentence += f", and the KV cache was up to {units.percent_text(found.kv_usage_max_ratio)} full"
    return f"{sentence}."


def prompt_sentence(found: Scheduling) -> str:
    """Say what the prefix cache spared, and how many prompts took several steps."""
    cached = units.percent_text(units.part(found.cached_tokens, found.prompt_tokens))
    sentence = f"Of {found.prompt_tokens:,} prompt tokens {found.cached_tokens:,} ({cached}) came from the prefix cache"
    if not found.chunked_prompts:
        return f"{sentence}; every prompt was computed in one step."
    return (
        f"{sentence}; {found.chunked_prompts:,} of {found.prompts:,} prompts were computed in chunks, "
        f"over up to {found.chunks_max:,} steps."
    )


def eviction_sentence(found: Scheduling) -> str:
    """Say how many requests lost their KV cache to others."""
    if not found.evictions:
        return "No request was evicted."
    times = f", {found.evictions:,} times in all" if found.evictions > found.evicted_requests else ""
    return f"Evicted to make room in the KV cache: {found.evicted_requests:,} of {found.prompts:,} requests{times}."
