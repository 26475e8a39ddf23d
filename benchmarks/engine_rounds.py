"""A real engine, traced and untraced in turn: transformers continuous batching with a batch of 8.

In: a model. Out: for each pair of rounds, wall time, CPU time of the process, steps, and the gaps between tokens that
the caller saw. A round is 8 prompts of 16 tokens that begin together, 16 output tokens each. Tracing is switched by
`tailspan.instrument()` and `uninstrument()`; the agent of a traced round is up before its clock starts and has
delivered to a real OTLP endpoint before the next round starts. Which of a pair comes first alternates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.agents import agent
from tailspan.engines import transformers
from tailspan.patching import Patcher, Wrapper
from tailspan.recorder import process
from tailspan.settings import Settings

BATCH, PROMPT_TOKENS, NEW_TOKENS = 8, 16, 16
WARM_UP_ROUNDS = 2
SETTLE_S = 0.8
"""Longer than the agent keeps finished spans before it sends them."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round; seconds."""

    wall_s: float
    cpu_s: float
    gaps_s: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Throughput."""
        return BATCH * NEW_TOKENS / self.wall_s


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rounds, one after the other."""

    untraced: Round
    traced: Round


def compare(model: Any, endpoint: str, seconds: float) -> list[Pair]:
    """Run pairs of rounds for about `seconds`."""
    pairs: list[Pair] = []
    patcher = transformers.patcher()
    with agent(endpoint), _manager(model) as manager:
        process.start(Settings.from_environment())
        try:
            for _ in range(WARM_UP_ROUNDS):
                _round(manager)
                _traced_round(manager, patcher)
            begin_s = time.monotonic()
            while time.monotonic() - begin_s < seconds:
                if len(pairs) % 2:
                    traced = _traced_round(manager, patcher)
                    pairs.append(Pair(_round(manager), traced))
                else:
                    untraced = _round(manager)
                    pairs.append(Pair(untraced, _traced_round(manager, patcher)))
        finally:
            process.close()
    return pairs


def hook_share(model: Any, endpoint: str, rounds: int) -> list[float]:
    """Return the time inside the hooks, without what they wrap, in percent of the CPU time of each round.

    Too high rather than too low: it holds two reads of the clock and one more call for each hook.
    """
    spent_ns = [0]
    targets = tuple(replace(target, wrapper=_timed(target.wrapper, spent_ns)) for target in transformers.TARGETS)
    patcher = Patcher(transformers.NAME, targets)
    shares = []
    with agent(endpoint), _manager(model) as manager:
        process.start(Settings.from_environment())
        patcher.apply()
        try:
            for number in range(WARM_UP_ROUNDS + rounds):
                spent_ns[0] = 0
                done = _round(manager)
                if number >= WARM_UP_ROUNDS:
                    shares.append(spent_ns[0] / 1e7 / done.cpu_s)
        finally:
            patcher.undo()
            process.close()
    return shares


def _timed(wrapper: Wrapper, spent_ns: list[int]) -> Wrapper:
    clock = time.perf_counter_ns

    def timed(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inside_ns = 0

        def original(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside_ns
            begin_ns = clock()
            try:
                return wrapped(*args, **kwargs)
            finally:
                inside_ns += clock() - begin_ns

        begin_ns = clock()
        try:
            return wrapper(original, instance, args, kwargs)
        finally:
            spent_ns[0] += clock() - begin_ns - inside_ns

    return timed


@contextmanager
def _manager(model: Any) -> Iterator[Any]:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(
        page_size=64, num_blocks=32, max_batch_tokens=256, use_cuda_graph=False, use_async_batching=False
    )
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching) as manager:
        yield manager


def _traced_round(manager: Any, patcher: Patcher) -> Round:
    patcher.apply()
    try:
        return _round(manager)
    finally:
        patcher.undo()


def _round(manager: Any) -> Round:
    last_s: dict[str, float] = {}
    gaps_s: list[float] = []
    finished = 0
    cpu_s, begin_s = time.process_time(), time.perf_counter()
    prompts = [list(range(10 + number, 10 + number + PROMPT_TOKENS)) for number in range(BATCH)]
    manager.add_requests(prompts, max_new_tokens=NEW_TOKENS, streaming=True)
    for output in manager:
        now_s = time.perf_counter()
        before_s = last_s.get(output.request_id)
        if before_s is not None:
            gaps_s.append(now_s - before_s)
        last_s[output.request_id] = now_s
        finished += output.is_finished()
        if finished == BATCH:
            break
    done = Round(time.perf_counter() - begin_s, time.process_time() - cpu_s, tuple(gaps_s))
    time.sleep(SETTLE_S)
    return done
