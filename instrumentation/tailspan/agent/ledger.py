"""A finished request with its stages: what spans, metrics and sampling are made from, computed once.

In: a `Finished` request. Out: a `Ledger`, or None for a request without begin or end.
Units: monotonic ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import sub

from tailspan import attributes as attr
from tailspan.agent.decode import Step
from tailspan.agent.join import Finished
from tailspan.agent.model import EngineState, Interval, RequestState
from tailspan.agent.stages import partition, token_times_ns, unattributed_ns
from tailspan.agent.timeline import Timeline

COMPUTED = ("prefill", "decode")
"""Stages in which an engine computes."""
HEALTHY = ("ok", "cancelled")
"""Outcomes that are nobody's fault."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One request's complete account of time."""

    request: RequestState
    engine: EngineState | None
    timeline: Timeline
    begin_ns: int
    end_ns: int
    stages: tuple[Interval, ...]
    ttft_ns: int | None
    gaps_ns: tuple[int, ...]
    """Gaps between the tokens, in order."""

    @property
    def e2e_ns(self) -> int:
        """End-to-end time."""
        return self.end_ns - self.begin_ns

    @property
    def unattributed_ns(self) -> int:
        """Time that no stage covers."""
        return unattributed_ns(self.begin_ns, self.end_ns, list(self.stages))

    @property
    def failed(self) -> bool:
        """Whether the request ended in a way that its caller did not want."""
        return self.request.outcome not in HEALTHY

    @property
    def model(self) -> str:
        """Model asked for, else the engine's; empty when neither is known."""
        asked = self.request.attributes.get(attr.GEN_AI_MODEL)
        return str(asked) if asked else self.engine.model if self.engine is not None else ""

    @property
    def request_gpu_ns(self) -> int | None:
        """GPU time of all stages in which the engine computed; None unless it is known of each."""
        known = [self.gpu_ns(part) for part in self.stages if part.stage in COMPUTED]
        return sum(filter(None, known)) if known and None not in known else None

    def gpu_ns(self, part: Interval) -> int | None:
        """GPU time of the engine's steps within a part of the request; None unless it is known of all these steps."""
        return self.timeline.gpu_ns(part.begin_ns, part.end_ns)

    def wall_ns(self, stage: str) -> int:
        """Wall time of a stage over all its parts, 0 if it has none."""
        return sum(part.end_ns - part.begin_ns for part in self.stages if part.stage == stage)


def stage_at(
    request: RequestState, engine: EngineState | None, steps: Mapping[int, Step], at_ns: int
) -> Interval | None:
    """Return the stage that a request is in, up to a moment or its end; None when it has none yet."""
    now = replace(request, end_ns=request.end_ns if request.end_ns is not None else at_ns)
    account = ledger(Finished(now, engine, steps))
    return account.stages[-1] if account is not None and account.stages else None


def ledger(finished: Finished) -> Ledger | None:
    """Return the account of a finished request."""
    request = finished.request
    if request.begin_ns is None or request.end_ns is None:
        return None
    begin_ns, end_ns = request.begin_ns, max(request.begin_ns, request.end_ns)
    timeline = Timeline(finished.steps, finished.engine.device if finished.engine is not None else None)
    tokens_ns = token_times_ns(request, timeline)
    first_ns = request.first_chunk_ns if request.first_chunk_ns is not None else request.first_token_ns
    if tokens_ns and request.finish_ns is None:
        # Ended without the engine's last word: what it had sampled by then.
        request.attributes.setdefault(attr.GEN_AI_OUTPUT_TOKENS, len(tokens_ns))
    return Ledger(
        request=request,
        engine=finished.engine,
        timeline=timeline,
        begin_ns=begin_ns,
        end_ns=end_ns,
        stages=tuple(partition(request, begin_ns, end_ns, timeline)),
        ttft_ns=first_ns - begin_ns if first_ns is not None and begin_ns <= first_ns <= end_ns else None,
        gaps_ns=tuple(map(sub, tokens_ns[1:], tokens_ns)),
    )
