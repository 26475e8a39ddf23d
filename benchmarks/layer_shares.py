"""Shares of a model's parts in its forward pass: by tailspan's samples, and by torch.profiler as an independent judge.

The profiler is told of each module by a range of its own (`record_function`) from PyTorch's registered hooks. Both
count what runs inside of a module; shares are of the whole forward pass. On a CPU the profiler notes nothing but these
ranges: noting every operation would slow down small ones, of which attention has more than an MLP. On a GPU it notes
kernels, which costs them nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from tailspan.device.timer import DeviceTimer
from tailspan.layers.governor import Governor
from tailspan.layers.parts import decode_parts
from tailspan.layers.plan import Plan
from tailspan.layers.sampler import LayerSampler

KINDS = ("attention", "mlp", "lm_head")
PASSES = 40
_SITES = {"self_attn": "attention", "mlp": "mlp", "lm_head": "lm_head"}
"""Modules by the last part of their names, in models of Llama's kind."""


def sampled_shares(
    plan: Plan, timer: DeviceTimer, forward: Callable[[], Any], wait: Callable[[], None], passes: int = PASSES
) -> dict[str, float]:
    """Return the share of each kind in `passes` sampled forward passes."""
    sampler = LayerSampler(plan, Governor(0.5, interval_ns=0, first_cost_ns=1))
    totals: defaultdict[str, float] = defaultdict(float)
    taken = 0
    while taken < passes:
        sampler.stepped("decode", 10**12)  # time enough for any cost
        sampled = sampler.begin(timer, "decode")
        begin = timer.record()
        forward()
        end = timer.record()
        sample = sampler.end()
        wait()
        if sampled and sample is not None:
            taken += 1
            for part, ns in zip(decode_parts(sample.parts_text), sample.times(timer, begin, end), strict=True):
                totals[part.kind] += ns
            timer.release(sample.marks)
        timer.release((begin, end))
    whole = sum(totals.values())
    return {kind: totals[kind] / whole for kind in KINDS}


def profiled_shares(
    model: Any, forward: Callable[[], Any], wait: Callable[[], None], device: str, passes: int = PASSES,
    *, with_whole: bool = True,
) -> dict[str, float]:  # fmt: skip
    """Return the same by torch.profiler: CPU time on a CPU, kernel time on a GPU.

    with_whole: the whole is the call of `forward`; else `forward` has a range `whole` of its own inside.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    open_ranges: list[Any] = []
    handles = []
    for name, module in model.named_modules():
        kind = _SITES.get(name.rpartition(".")[2])
        if kind:
            handles.append(module.register_forward_pre_hook(_opens(kind, open_ranges, record_function)))
            handles.append(module.register_forward_hook(_closes(open_ranges)))
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    try:
        with _ranges_only() if device == "cpu" else nullcontext(), profile(activities=activities) as profiler:
            for _ in range(passes):
                with record_function("whole") if with_whole else nullcontext():
                    forward()
            wait()
    finally:
        for handle in handles:
            handle.remove()
    spent = {
        row.key: row.device_time_total if device == "cuda" else row.cpu_time_total for row in profiler.key_averages()
    }
    return {kind: spent[kind] / spent["whole"] for kind in KINDS}


def _ranges_only() -> Any:
    """Let the profiler note no single operations while it is started inside."""
    from torch._C._profiler import RecordScope
    from torch.autograd import profiler

    enable = profiler._enable_profiler
    return patch.object(profiler, "_enable_profiler", lambda *given: enable(*given, {RecordScope.USER_SCOPE}))


def _opens(kind: str, open_ranges: list[Any], record_function: Any) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        opened = record_function(kind)
        opened.__enter__()
        open_ranges.append(opened)

    return hook


def _closes(open_ranges: list[Any]) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    return hook
