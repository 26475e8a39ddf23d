"""What tracing costs a worker: a real engine and a synthetic scheduler, traced against untraced in one process.

A row's value is the upper bound of the 95 % interval of the change, so that it holds only when it is known to hold; the
estimate and the interval stand where others have their peer. `hooks` and `recorder` rows are the answer where the
machine is too noisy for that: the time inside our own code, measured there, in percent of the CPU time of the same
work.

Units: percent of the untraced value; positive is worse.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.agents import agent
from benchmarks.engine_rounds import Pair, compare, hook_share
from benchmarks.pairs import Change, change_of_median, change_of_quantile, median_interval
from benchmarks.result import Result
from benchmarks.scheduler_loop import SchedulerLoop, iterations_of_a_step
from benchmarks.sink import sink
from benchmarks.transformers_rounds import rounds
from tailspan.engines import transformers
from tailspan.recorder import process
from tailspan.settings import Settings

GOAL_PERCENT = 1.0
ENGINE_SECONDS = 110.0
HOOK_ROUNDS = 8
LOOP_BLOCKS, LOOP_WARM_UP_BLOCKS, BLOCK_STEPS = 200, 8, 8
"""Blocks, so that code and data are as warm as in an engine that does nothing else; short, so that two neighbours see
the same machine."""


def run() -> list[Result]:
    """Run both comparisons."""
    with sink() as endpoint:
        loop = scheduler(endpoint)
        model = real_model()
        with rounds(model) as run_round:
            pairs = compare(run_round, transformers.TARGETS, endpoint, ENGINE_SECONDS)
            hooks = hook_share(run_round, transformers.TARGETS, endpoint, HOOK_ROUNDS)
    return [
        *comparison_rows("overhead.engine", pairs),
        row("overhead.engine.hooks", median_interval(hooks), HOOK_ROUNDS),
        *loop,
    ]


def comparison_rows(name: str, pairs: list[Pair]) -> list[Result]:
    """Judge a real engine: wall time of a round is one over its throughput."""
    untraced, traced = [pair.untraced for pair in pairs], [pair.traced for pair in pairs]
    slower = change_of_median([r.wall_s for r in untraced], [r.wall_s for r in traced])
    itl = change_of_quantile([r.gaps_s for r in untraced], [r.gaps_s for r in traced], 0.99)
    cpu = change_of_median([r.cpu_s for r in untraced], [r.cpu_s for r in traced])
    return [
        row(f"{name}.wall", slower, len(pairs)),
        row(f"{name}.itl_p99", itl, len(pairs)),
        row(f"{name}.cpu", cpu, len(pairs)),
    ]


def scheduler(endpoint: str) -> list[Result]:
    """Compare three scheduler loops in short blocks, beside a running agent; a block counts as its median step."""
    with agent(endpoint):
        process.start(Settings.from_environment())
        iterations = iterations_of_a_step()
        loops = [SchedulerLoop(served, iterations) for served in (None, False, True)]
        totals: list[list[float]] = [[], [], []]
        shares: list[list[float]] = [[], [], []]
        for number in range(LOOP_WARM_UP_BLOCKS + LOOP_BLOCKS):
            for offset in range(3):
                index = (number + offset) % 3
                steps = [loops[index].step() for _ in range(BLOCK_STEPS)]
                if number >= LOOP_WARM_UP_BLOCKS:
                    totals[index].append(statistics.median(total_ns for total_ns, _ in steps))
                    shares[index].append(statistics.median(own / (total - own) * 100 for total, own in steps))
        process.close()
    return [
        row("overhead.scheduler.cpu", change_of_median(totals[0], totals[1]), LOOP_BLOCKS),
        row("overhead.scheduler.recorder", median_interval(shares[1]), LOOP_BLOCKS),
        row("overhead.scheduler_and_http.cpu", change_of_median(totals[0], totals[2]), LOOP_BLOCKS),
        row("overhead.scheduler_and_http.recorder", median_interval(shares[2]), LOOP_BLOCKS),
    ]


def row(name: str, change: Change, pairs: int) -> Result:
    """Judge one change."""
    estimate = f"estimate in {change.interval}, {pairs} pairs"
    return Result(name, change.high, "%", GOAL_PERCENT, peer=estimate, peer_value=change.percent)


def real_model() -> Any:
    """Return SmolLM2 in the type that this CPU computes fastest."""
    import torch
    from transformers import AutoModelForCausalLM

    from tailspan_queries.demo.model import prepare_model
    from tailspan_queries.demo.server import fastest_dtype

    torch.set_num_threads(1)
    dtype = getattr(torch, fastest_dtype())
    return _quietly(lambda: AutoModelForCausalLM.from_pretrained(prepare_model(), dtype=dtype)).eval()


def _quietly(load: Callable[[], Any]) -> Any:
    from transformers.utils import logging

    logging.disable_progress_bar()
    return load()
