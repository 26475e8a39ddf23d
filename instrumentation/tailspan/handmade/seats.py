"""The place of one request in an engine: when it joined, sampled its first token, was away, finished.

A request that is missing from a step was evicted or is done. Which of the two shows later: it comes back, or it ends.
Its `LEAVE` or `FINISH` is written then, with the step and time at which it was last seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailspan.handmade.handles import RequestHandle
from tailspan.recorder import now_ns

if TYPE_CHECKING:
    from tailspan.handmade.engine import Engine


class Seat:
    """The state of a request that an engine has; the engine's lock guards it where a step begins or ends."""

    __slots__ = (
        "awaits_token",
        "away",
        "away_ns",
        "away_step",
        "engine",
        "finished",
        "first_token_step",
        "handle",
        "join_end_ns",
        "join_step",
        "key",
    )  # fmt: skip

    def __init__(self, engine: Engine, handle: RequestHandle, key: int) -> None:
        """The engine has the request; it takes part in no step yet."""
        self.engine = engine
        self.handle = handle
        self.key = key
        self.join_step = 0
        self.join_end_ns = 0
        self.first_token_step = 0
        self.awaits_token = True
        """Whether the next token is the first since the request joined."""
        self.away = True
        self.away_step = 0
        self.away_ns = 0
        self.finished = False

    def join(self, step: int, at_ns: int) -> None:
        """Take part from this step on; after a time away that was an eviction."""
        if self.join_step:
            self.engine.recorder.leave(self.key, self.away_step, self.away_ns)
        self.engine.recorder.join(self.key, step, at_ns)
        self.join_step = step
        self.join_end_ns = 0
        self.away = False
        self.awaits_token = True

    def leave(self, step: int, at_ns: int) -> None:
        """Take no part any more since `step`, which ended at `at_ns`."""
        self.away = True
        self.away_step, self.away_ns = step, at_ns

    def token(self, count: int) -> None:
        """Sample tokens in the step under way, else in the last one."""
        self.engine.tells_tokens = True
        step = self.engine.open_step
        if step is not None:
            step.note(self, count)
        elif self.awaits_token and self.join_step:
            self.first_token(self.engine.last_step, self.engine.last_end_ns or now_ns())

    def first_token(self, step: int, at_ns: int) -> None:
        """Record the first token, or the first one after an eviction."""
        if self.awaits_token and not self.finished:
            self.awaits_token = False
            self.first_token_step = self.first_token_step or step
            self.engine.recorder.first_token(self.key, step, at_ns)

    def finish(self) -> None:
        """Finish at the end of the step under way, or where the request was last seen."""
        step = self.engine.open_step
        if step is not None and not self.away:
            step.finishing.append(self)
        else:
            with self.engine.lock:
                self.close(now_ns(), sampled=True)

    def end(self, at_ns: int, *, sampled: bool) -> None:
        """The request ends: finish now if it did not yet; `sampled` unless something went wrong."""
        with self.engine.lock:
            self.close(at_ns, sampled=sampled)

    def close(self, at_ns: int, *, sampled: bool) -> None:
        """Record the finish where the request was last seen: in its last step, or in the one under way."""
        if self.finished or not self.join_step:
            return
        if self.away:
            self.record_finish(self.away_step, self.away_ns, sampled=sampled)
        elif self.engine.open_step is not None:
            # The client may be gone with its answer before the step that sampled it has ended.
            if self in self.engine.open_step.first_tokens:
                self.first_token(self.engine.open_number, at_ns)
            self.record_finish(self.engine.open_number, at_ns, sampled=sampled)
        else:
            self.record_finish(self.engine.last_step, min(at_ns, self.engine.last_end_ns or at_ns), sampled=sampled)

    def record_finish(self, step: int, at_ns: int, *, sampled: bool) -> None:
        """Record the last token, once."""
        if self.finished:
            return
        if not self.first_token_step and sampled and not self.engine.tells_tokens:
            # A worker that never says when tokens are sampled gets one each step.
            self.first_token(self.join_step, self.join_end_ns or at_ns)
        self.finished = True
        prefill_steps = max(1, (self.first_token_step or step) - self.join_step + 1)
        self.engine.recorder.finish(self.key, step, at_ns, self.handle._output_tokens, prefill_steps)
