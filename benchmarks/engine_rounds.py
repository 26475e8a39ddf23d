"""A real engine, traced and untraced in turn in one process.

In: a function that runs a round, `BATCH` prompts that begin together, and the targets of its engine. Out: for each pair
of rounds, wall time, CPU time of the process, and the gaps between tokens that the caller saw. The patches are applied
for good and the recorder is switched on and off, since a class that is patched anew makes the interpreter forget what
it knew of it; a hook of a process that does not record returns at once. An agent reads and delivers to a real OTLP
endpoint all the while. Which of a pair comes first alternates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.agents import agent
from tailspan.patching import Patcher, Target, Wrapper
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


RunRound = Callable[[], Round]
"""Runs one round and waits until the agent has nothing left to do for it."""


def compare(run_round: RunRound, targets: tuple[Target, ...], endpoint: str, seconds: float) -> list[Pair]:
    """Run pairs of rounds for about `seconds`."""
    pairs: list[Pair] = []
    patcher = Patcher("benchmark", targets)
    with agent(endpoint):
        process.start(Settings.from_environment())
        patcher.apply()
        try:
            for _ in range(WARM_UP_ROUNDS):
                _untraced(run_round)
                run_round()
            begin_s = time.monotonic()
            while time.monotonic() - begin_s < seconds:
                if len(pairs) % 2:
                    traced = run_round()
                    pairs.append(Pair(_untraced(run_round), traced))
                else:
                    untraced = _untraced(run_round)
                    pairs.append(Pair(untraced, run_round()))
        finally:
            patcher.undo()
            process.close()
    return pairs


def hook_share(run_round: RunRound, targets: tuple[Target, ...], endpoint: str, rounds: int) -> list[float]:
    """Return the time inside the hooks, without what they wrap, in percent of the CPU time of each round.

    Too high rather than too low: it holds two reads of the clock and one more call for each hook.
    """
    spent_ns = [0]
    timed = tuple(replace(target, wrapper=_timed(target.wrapper, spent_ns)) for target in targets)
    patcher = Patcher("benchmark", timed)
    shares = []
    with agent(endpoint):
        process.start(Settings.from_environment())
        patcher.apply()
        try:
            for number in range(WARM_UP_ROUNDS + rounds):
                spent_ns[0] = 0
                done = run_round()
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


def _untraced(run_round: RunRound) -> Round:
    recorder, process._recorder = process._recorder, None
    try:
        return run_round()
    finally:
        process._recorder = recorder
