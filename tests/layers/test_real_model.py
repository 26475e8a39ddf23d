"""Layer times of the real SmolLM2 against a clock around the whole forward pass, and against torch's profiler."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoModelForCausalLM, DynamicCache

from tailspan.device.host import HostTimer
from tailspan.layers.governor import Governor
from tailspan.layers.parts import decode_parts
from tailspan.layers.plan import Plan
from tailspan.layers.sampler import DECODE, LayerSampler
from tests.layers.test_plan import planned

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
PROMPT_TOKENS = 32
COMPARED = ("attention", "mlp", "lm_head")
CLASSES = {"LlamaAttention": "attention", "LlamaMLP": "mlp", "LlamaRMSNorm": "norm"}
"""What the profiler's ranges are called by: nothing of the plan under test."""


class ThreadClock(HostTimer):
    """Time that the thread computes: what other programs take from it on a busy machine is left out."""

    record = staticmethod(time.thread_time_ns)


class Measured(NamedTuple):
    """Medians over interleaved steps."""

    closure: float
    """Sum of the parts of a sampled step / time of the forward pass without sampling beside it."""
    slowdown: float
    """Time of the sampled forward pass / time of the one beside it."""
    shares: dict[str, float]
    forward_ms: float
    cost_us: float


@pytest.fixture(scope="module")
def model() -> Any:
    """The real SmolLM2-135M-Instruct in float32."""
    from tailspan_queries.demo.model import prepare_model

    return AutoModelForCausalLM.from_pretrained(prepare_model(), dtype=torch.float32).eval()


def passes(model: Any, phase: str) -> Callable[[], torch.Tensor]:
    """Return a function that repeats the same prefill, or the same decode step after it."""
    prompt = torch.arange(1000, 1000 + PROMPT_TOKENS)[None]
    if phase == "prefill":
        return lambda: model(prompt, use_cache=True).logits
    cache = DynamicCache(config=model.config)
    model(prompt, None, None, cache)

    def decode() -> torch.Tensor:
        logits: torch.Tensor = model(torch.tensor([[42]]), None, None, cache).logits
        cache.crop(PROMPT_TOKENS - cache.get_seq_length())
        return logits

    return decode


def new_sampler(plan: Plan) -> LayerSampler:
    """Return a sampler that takes every step."""
    return LayerSampler(plan, Governor(1e6, first_cost_ns=0, interval_ns=0))


def sampled_step(
    sampler: LayerSampler, timer: HostTimer, forward: Callable[[], torch.Tensor]
) -> tuple[dict[str, float], int, int]:
    """Return ns by kind of one sampled step, the ns of all of it, and what sampling cost."""
    assert sampler.begin(timer, DECODE)
    begin = timer.record()
    forward()
    end = timer.record()
    sample = sampler.end()
    assert sample is not None
    kinds: dict[str, float] = defaultdict(float)
    for part, ns in zip(decode_parts(sample.parts_text), sample.times(timer, begin, end), strict=True):
        kinds[part.kind] += ns
    sampler.stepped(DECODE, 10**9)
    return kinds, end - begin, sample.cost_ns


def unsampled_ns(forward: Callable[[], torch.Tensor]) -> int:
    """Return what the thread computes in a forward pass."""
    begin = time.thread_time_ns()
    forward()
    return time.thread_time_ns() - begin


def measure(plan: Plan, forward: Callable[[], torch.Tensor], rounds: int) -> Measured:
    """Run each sampled step between two without sampling."""
    sampler, timer = new_sampler(plan), ThreadClock()
    sums, slower, plain, costs = [], [], [], []
    shares: dict[str, list[float]] = defaultdict(list)
    before_ns = unsampled_ns(forward)
    for _ in range(rounds):
        kinds, step_ns, cost_ns = sampled_step(sampler, timer, forward)
        after_ns = unsampled_ns(forward)
        beside_ns = (before_ns + after_ns) / 2
        before_ns = after_ns
        total_ns = sum(kinds.values())
        for kind, ns in kinds.items():
            shares[kind].append(ns / total_ns)
        sums.append(total_ns / beside_ns)
        slower.append(step_ns / beside_ns)
        plain.append(beside_ns)
        costs.append(cost_ns)
    return Measured(
        median(sums),
        median(slower),
        {kind: median(values) for kind, values in shares.items()},
        median(plain) / 1e6,
        median(costs) / 1e3,
    )


@contextmanager
def ranges(model: Any) -> Iterator[None]:
    """Name each module's work for the profiler, by hooks and class names."""
    handles = []
    for module in model.modules():
        label = "lm_head" if module is model.lm_head else CLASSES.get(type(module).__name__)
        if label:
            open_ranges: list[Any] = []

            def enter(*_: Any, name: str = label, stack: list[Any] = open_ranges) -> None:
                stack.append(record_function(name))
                stack[-1].__enter__()

            def leave(*_: Any, stack: list[Any] = open_ranges) -> None:
                stack.pop().__exit__(None, None, None)

            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    yield
    for handle in handles:
        handle.remove()


def profiled_shares(
    model: Any, plan: Plan, forward: Callable[[], torch.Tensor]
) -> Iterator[tuple[dict[str, float], ...]]:
    """Yield, for steps that are sampled and profiled at once, the shares by the sampler and by torch's profiler.

    One step for both: the profiler slows small operations down, and a busy machine any.
    """
    sampler, timer = new_sampler(plan), HostTimer()
    with ranges(model):
        for _ in range(9):
            with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("step"):
                kinds, _, _ = sampled_step(sampler, timer, forward)
            totals = {row.key: row.cpu_time_total for row in profiler.key_averages()}
            total_ns = sum(kinds.values())
            yield (
                {kind: kinds[kind] / total_ns for kind in COMPARED},
                {kind: totals[kind] / totals["step"] for kind in COMPARED},
            )


@torch.no_grad()
@pytest.mark.parametrize(("phase", "rounds"), [("prefill", 40), ("decode", 60)])
def test_layers_of_the_real_model(phase: str, rounds: int, model: Any) -> None:
    """The parts add up to the model's own time, their shares are the profiler's; the benchmark says how exactly."""
    plan, forward = planned(model), passes(model, phase)
    expected = forward()
    measured = measure(plan, forward, rounds)
    assert torch.equal(forward(), expected)
    steps = list(profiled_shares(model, plan, forward))
    ours = {kind: median(shares[kind] for shares, _ in steps) for kind in COMPARED}
    theirs = {kind: median(shares[kind] for _, shares in steps) for kind in COMPARED}
    print(f"\n{phase}: forward {measured.forward_ms:.1f} ms, sum of parts / forward {measured.closure:.4f}, "
          f"sampled / unsampled {measured.slowdown:.4f}, cost of a sample {measured.cost_us:.0f} us")  # fmt: skip
    print("  part        share   in profiled steps: ours  profiler")
    for kind, share in sorted(measured.shares.items(), key=lambda item: -item[1]):
        beside = f"{ours[kind]:24.2%} {theirs[kind]:8.2%}" if kind in COMPARED else ""
        print(f"  {kind:10} {share:7.2%} {beside}")
    assert measured.closure == pytest.approx(1, abs=0.08)
    for kind in COMPARED:
        assert ours[kind] == pytest.approx(theirs[kind], abs=0.06), kind
    assert measured.shares["other"] < 0.1


@torch.no_grad()
def test_sampled_steps_of_the_real_model_give_the_same_tokens(model: Any) -> None:
    """Greedy text with every step sampled is that without."""
    plan, prompt = planned(model), torch.tensor([[504, 3575, 282, 4649, 314]])

    def generate(sampler: LayerSampler | None) -> list[int]:
        cache, new, timer, output = DynamicCache(config=model.config), prompt, HostTimer(), []
        for _ in range(12):
            is_sampled = sampler is not None and sampler.begin(timer, DECODE)
            logits = model(new, None, None, cache).logits
            if sampler is not None:
                assert is_sampled
                assert sampler.end() is not None
                sampler.stepped(DECODE, 10**9)
            new = logits[:, -1:].argmax(-1)
            output.append(int(new))
        return output

    assert generate(new_sampler(plan)) == generate(None)
