"""Who is in a vLLM scheduler's batch and what its steps hold, and how that is read from vLLM's objects.

In: vLLM's `Request`, `Scheduler` and `SchedulerOutput`, of any supported version. Units: monotonic ns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Member:
    """A user request in this engine."""

    __slots__ = (
        "accepted", "awaits_token", "drafted", "evicted_step", "foreseen_step", "has_token", "key", "open",
        "output_tokens", "prefill_steps", "running",
    )  # fmt: skip

    def __init__(self, key: int) -> None:
        """Nothing of it is in the batch yet."""
        self.key = key
        self.open = 0
        """Sequences that the engine has."""
        self.running = 0
        """Those in the batch."""
        self.evicted_step = 0
        """The last step that was planned with a sequence that was evicted then."""
        self.has_token = False
        self.awaits_token = False
        """Whether nothing was sampled since it last came into the batch."""
        self.foreseen_step = 0
        """The step of which its last join says that it samples a token."""
        self.output_tokens = 0
        self.prefill_steps = 0
        self.drafted = self.accepted = 0


class Sequence:
    """One vLLM `Request`; `member` is None for those that nobody asked to trace."""

    __slots__ = ("join_step", "member", "prefill_steps", "request")

    def __init__(self, request: Any, member: Member | None) -> None:
        """Waiting."""
        self.request = request
        self.member = member
        self.join_step = 0
        """The step with which it last came into the batch; 0 outside of it."""
        self.prefill_steps = 0


class Plan(NamedTuple):
    """A step under way."""

    output: Any
    """Kept so that its identity is not given to another."""
    number: int
    begin_ns: int
    requests: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    preempted: int
    kv_usage: float
    producers: list[tuple[Sequence, int]]
    """Sequences whose prompt is complete with this step, each with its `join_step`."""


def is_complete(request: Any) -> bool:
    """Whether the step just planned computes all of the prompt, and of the output if it was lost."""
    return bool(request.num_computed_tokens >= request.num_tokens)


def delivers(sequence: Sequence, join_step: int) -> bool:
    """Whether a token of a step that was planned after `join_step` counts, although the sequence may be out by now.

    Newer versions of vLLM deliver the token of a step that was under way when the sequence was evicted.
    """
    if sequence.join_step == join_step:
        return True
    request = sequence.request
    is_late = bool(getattr(request, "num_stale_output_tokens", 0)) and not getattr(request, "drop_stale_output", False)
    return is_late and not request.is_finished()


def resumed_ids(cached: Any) -> Iterable[str]:
    """Return who comes back after an eviction."""
    ids = getattr(cached, "resumed_req_ids", None)
    if ids is not None:
        return tuple(ids)
    flags = getattr(cached, "resumed_from_preemption", ())  # before 0.12
    return [request_id for request_id, is_resumed in zip(cached.req_ids, flags, strict=False) if is_resumed]


def waiting_count(scheduler: Any) -> int:
    """Return how many sequences wait."""
    counts = getattr(scheduler, "get_request_counts", None)
    return int(counts()[1]) if counts is not None else len(scheduler.waiting)


def kv_usage_ratio(scheduler: Any) -> float:
    """Return the used share of the KV cache, NaN where that is not known."""
    manager = getattr(scheduler, "kv_cache_manager", None)
    return float(getattr(manager, "usage", float("nan")))
