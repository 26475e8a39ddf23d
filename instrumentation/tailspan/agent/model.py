"""What the agent knows about a request while its records arrive, in any order and from several rings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tailspan.agent.decode import Step, Value
from tailspan.agent.device import DeviceTime, Layers


class Interval(NamedTuple):
    """A part of a request's time. Monotonic ns; `busy_ns` None when it is not known."""

    stage: str
    begin_ns: int
    end_ns: int
    busy_ns: int | None = None


@dataclass(slots=True)
class Membership:
    """From joining a batch until leaving it, in step numbers and monotonic ns; open while `leave_ns` is None.

    `first_token_step` is set after an eviction whose prompt is computed again: the steps before it give no token.
    `samples_token` until the request leaves or finishes: the end of `join_step` is the time of its first token.
    """

    join_step: int
    join_ns: int
    cached_tokens: int
    leave_step: int | None = None
    leave_ns: int | None = None
    first_token_step: int | None = None
    samples_token: bool = False
    is_next_call: bool = False
    """Whether the request had finished in the engine before: its caller gave it another prompt."""


@dataclass(slots=True)
class RequestState:
    """All records of one request. A time is None until its record arrived."""

    key: int
    name: str = ""
    trace_id: int = 0
    parent_id: int = 0
    flags: int = 1
    begin_ns: int | None = None
    pid: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)
    measured: list[Interval] = field(default_factory=list)
    engine: str = ""
    queued_ns: int | None = None
    memberships: list[Membership] = field(default_factory=list)
    first_token_step: int | None = None
    first_token_ns: int | None = None
    finish_step: int | None = None
    finish_ns: int | None = None
    prefill_steps: int = 0
    output_tokens: int = 0
    """Of all its calls of the engine."""
    was_aborted: bool = False
    """Whether the engine was told to give it up, by its caller or because a stop string ended it."""
    first_chunk_ns: int | None = None
    text_ready_ns: int | None = None
    text_busy_ns: int = 0
    end_ns: int | None = None
    outcome: str = "ok"
    error_type: str = ""
    http_status: int = 0
    ended_in_pass: int = 0

    @property
    def in_engine(self) -> bool:
        """Whether the engine has, or had, the request and did not say that it finished."""
        return self.queued_ns is not None and self.finish_ns is None


@dataclass(slots=True)
class EngineState:
    """Recent steps of one engine, kept as long as an open request may need them."""

    engine: str
    software: str = ""
    model: str = ""
    pid: int = 0
    """The process that records its steps."""
    steps: dict[int, Step] = field(default_factory=dict)
    work: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By step: ns of the model runner for the forward pass and for sampling, until the step is told."""
    device: dict[int, DeviceTime] = field(default_factory=dict)
    """By step, of those in `steps`."""
    early_device: dict[int, DeviceTime] = field(default_factory=dict)
    """By step, of those whose STEP has not come."""
    layers: dict[int, Layers] = field(default_factory=dict)
    """By step, until the step is told."""
    patience: int = 0
    """How many more steps without device time are waited for; 0 for an engine that gives none."""
    last_end_ns: int | None = None
    last_number: int = 0
