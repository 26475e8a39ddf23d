"""Layer timings on a real model, in transformers and in vLLM: do they add up, are they right, what do they cost?

closure: parts of sampled steps against steps that are not sampled, which another clock times; medians of steps in turn.
shares: attention, MLP and lm_head against torch.profiler, which knows the modules by ranges of its own.
overhead: decode steps with device and layer times on and off in turn, at the default budget. Each step with us is
compared with the two beside it by CPU time; the medians of sampled and of other steps are weighed by how many there
were, so that the cost of the few is not lost in the noise of the many. The interval stands in place of a peer.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.gpu_check import recorder
from benchmarks.layer_shares import KINDS, profiled_shares, sampled_shares
from benchmarks.pairs import Change
from benchmarks.result import Result
from tailspan.device.host import HostTimer
from tailspan.device.steps import StepProbe
from tailspan.layers.governor import BUDGET, Governor
from tailspan.layers.plan import Plan, plan_of
from tailspan.layers.sampler import LayerSampler
from tailspan_queries.demo.model import prepare_model

CHECKOUT = Path(__file__).parents[1]
CLOSURE_PERCENT, SHARE_POINTS = 3.0, 3.0
PROMPT_TOKENS = 64
PAIRS = 40
OVERHEAD_STEPS = 1_000
"""Steps with us."""
RESAMPLES = 2_000


def run() -> list[Result]:
    """Run all measurements, in transformers first."""
    return [*_transformers(), *_vllm()]


def _transformers() -> list[Result]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(prepare_model(), dtype=torch.float32).eval()
    plan = plan_of(model)
    if not isinstance(plan, Plan):
        raise RuntimeError(plan)
    decode, prefill = forwards(model)
    rows = []
    for phase, forward in (("decode", decode), ("prefill", prefill)):
        wholes, sums = _closure(plan, forward)
        rows.append(closure_row(f"layers.transformers.{phase}", [b / a for a, b in zip(wholes, sums, strict=True)]))
        ours = sampled_shares(plan, HostTimer(), forward, _no_wait)
        theirs = profiled_shares(model, forward, _no_wait, "cpu")
        rows += share_rows(f"layers.transformers.{phase}", ours, theirs)
    return [*rows, overhead_row("layers.transformers", overhead(plan, decode))]


def forwards(model: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a decode step after a prompt, and the prefill of that prompt; each leaves everything as it was."""
    import torch

    prompt = torch.arange(100, 100 + PROMPT_TOKENS)[None]
    with torch.inference_mode():
        cache = model(prompt, use_cache=True).cache

    def decode() -> Any:
        with torch.inference_mode():
            logits = model(prompt[:, -1:], cache=cache, use_cache=True).logits
            cache.crop(-1)
        return logits

    def prefill() -> Any:
        with torch.inference_mode():
            return model(prompt, use_cache=True).logits

    return decode, prefill


def _closure(plan: Plan, forward: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Return the ns of steps that are not sampled, and the sums of sampled ones, in turn."""
    timer = HostTimer()
    sampler = LayerSampler(plan, Governor(0.5, interval_ns=0, first_cost_ns=1))
    wholes: list[float] = []
    sums: list[float] = []
    before_ns = _timed(forward)
    while len(sums) < PAIRS:
        sampler.stepped("decode", 10**12)
        if sampler.begin(timer, "decode"):
            begin = timer.record()
            forward()
            end = timer.record()
            sample = sampler.end()
            after_ns = _timed(forward)
            if sample is not None:
                wholes.append((before_ns + after_ns) / 2)
                sums.append(sum(sample.times(timer, begin, end)))
            before_ns = after_ns
    return wholes, sums


def _timed(forward: Callable[[], Any]) -> int:
    begin_ns = time.perf_counter_ns()
    forward()
    return time.perf_counter_ns() - begin_ns


class NotingProbe(StepProbe):
    """A probe that remembers whether its last step was sampled."""

    __slots__ = ("is_sampled",)

    def begin(self, phase: str) -> bool:
        """Note the answer."""
        self.is_sampled = super().begin(phase)
        return self.is_sampled


def overhead(plan: Plan, forward: Callable[[], Any]) -> Change:
    """Return what device and layer times cost, in percent of the CPU time of a step."""
    probe = NotingProbe(HostTimer(), LayerSampler(plan, Governor(BUDGET)))

    def step(number: int, is_on: bool) -> bool:
        if is_on:
            probe.begin("decode")
        forward()
        if is_on:
            probe.launched()
            probe.end("benchmark", number)
            probe.poll()
        return is_on and probe.is_sampled

    with recorder():
        return change_of_steps(*in_turn(step))


def in_turn(step: Callable[[int, bool], bool]) -> tuple[list[float], list[float]]:
    """Run steps without and with us in turn; return CPU time / that of the steps beside it, of sampled and of others.

    One or two steps without us come between two with us, by chance: some things happen every other step.
    step: takes a number and whether we are on; returns whether it was sampled.
    """
    ratios: dict[bool, list[float]] = {False: [], True: []}
    rng = random.Random(20_261_130)
    number = 0

    def timed(is_on: bool) -> tuple[int, bool]:
        nonlocal number
        number += 1
        begin_ns = time.thread_time_ns()
        is_sampled = step(number, is_on)
        return time.thread_time_ns() - begin_ns, is_sampled

    before_ns, _ = timed(False)
    for _ in range(OVERHEAD_STEPS):
        with_ns, is_sampled = timed(True)
        after_ns, _ = timed(False)
        ratios[is_sampled].append(2 * with_ns / (before_ns + after_ns))
        before_ns = timed(False)[0] if rng.random() < 0.5 else after_ns
    return ratios[True], ratios[False]


def _vllm() -> list[Result]:
    subprocess.run([sys.executable, str(CHECKOUT / "tests/vllm/environment.py"), str(CHECKOUT)], check=True)
    command = [str(CHECKOUT / ".venv-vllm/bin/python"), "-m", "benchmarks.vllm_layers", str(prepare_model())]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return [
        closure_row("layers.vllm.decode", found["closure"]),
        *share_rows("layers.vllm.decode", found["ours"], found["theirs"]),
        overhead_row("layers.vllm", change_of_steps(found["sampled"], found["others"])),
    ]


def closure_row(name: str, ratios: list[float]) -> Result:
    """Judge how the parts add up: their sum over the time of a step that is not sampled."""
    off = (statistics.median(ratios) - 1) * 100
    label = f"{len(ratios)} samples, signed"
    return Result(f"{name}.closure", abs(off), "%", CLOSURE_PERCENT, peer=label, peer_value=off)


def share_rows(name: str, ours: dict[str, float], theirs: dict[str, float]) -> list[Result]:
    """Judge the shares, in points."""
    return [
        Result(
            f"{name}.{kind}.off", abs(ours[kind] - theirs[kind]) * 100, "points", SHARE_POINTS,
            peer="torch.profiler's share", peer_value=theirs[kind] * 100,
        )
        for kind in KINDS
    ]  # fmt: skip


def overhead_row(name: str, change: Change) -> Result:
    """Judge the cost against the budget."""
    label = f"in {change.interval}, {OVERHEAD_STEPS} steps"
    return Result(f"{name}.overhead", change.percent, "%", BUDGET * 100, peer=label, peer_value=change.percent)


def change_of_steps(sampled: list[float], others: list[float]) -> Change:
    """Return the change of the mean step in percent, with its 95 % interval over steps."""
    rng = random.Random(20_261_130)
    share = len(sampled) / (len(sampled) + len(others))

    def estimate(of_sampled: list[float], of_others: list[float]) -> float:
        mean = share * statistics.median(of_sampled) + (1 - share) * statistics.median(of_others)
        return (mean - 1) * 100

    resampled = sorted(
        estimate(rng.choices(sampled, k=len(sampled)), rng.choices(others, k=len(others))) for _ in range(RESAMPLES)
    )
    low, high = resampled[int(0.025 * RESAMPLES)], resampled[int(0.975 * RESAMPLES) - 1]
    return Change(estimate(sampled, others), low, high)


def _no_wait() -> None:
    """A CPU has computed when a call returns."""
