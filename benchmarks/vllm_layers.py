"""Layer timings in vLLM for `bench_layers`, in the environment that has it: `python -m benchmarks.vllm_layers`.

In: model folder. Out: one line of JSON: `wholes` and `sums` (ns of decode steps by another clock, and the parts of
sampled ones), `ours` and `theirs` (shares by samples and by torch.profiler), `off` and `on` (CPU time of blocks, ns).
Engine core and model run in this process. All steps are decode steps of the same 8 sequences.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.vllm_rounds import MACHINE

BATCH, PROMPT_TOKENS, NEW_TOKENS = 8, 16, 440
PROFILED_STEPS = 40
MEASURED_STEPS = 160


def main(model: str) -> None:
    """Run all measurements."""
    os.environ.update(MACHINE)
    os.environ["TAILSPAN_LAYER_BUDGET"] = "50"
    from vllm import LLM

    from benchmarks.bench_layers import blocks
    from benchmarks.gpu_check import recorder
    from tailspan.engines import vllm

    patcher = vllm.patcher()
    patcher.apply()
    engine = LLM(
        model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=BATCH, max_num_batched_tokens=512,
        enable_prefix_caching=False,
    ).llm_engine  # fmt: skip
    with recorder() as told:
        decode = Decoding(engine)
        decode.step()
        runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        wholes, sums, ours = measured(decode, runner, told)
        run = runner.tailspan_run
        probe, run.probe = run.probe, None
        theirs = profiled(decode, runner)
        run.probe = default_probe(runner, probe)
        probe = run.probe

        def step(_: int, is_on: bool) -> None:
            run.probe = probe if is_on else None
            decode.step()

        off, on = blocks(step)
    print(json.dumps({"wholes": wholes, "sums": sums, "ours": ours, "theirs": theirs, "off": off, "on": on}))


class Decoding:
    """A batch that decodes; when its answers are long enough, the same prompts begin anew."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._number = 0

    def step(self) -> None:
        """Run one step with all sequences; what is needed to get there runs before it."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if not self._engine.has_unfinished_requests():
            params = SamplingParams(
                temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA
            )
            for _ in range(BATCH):
                self._number += 1
                self._engine.add_request(str(self._number), f"{self._number % BATCH} " * (PROMPT_TOKENS // 2), params)
            self._engine.step()
        self._engine.step()


def measured(
    decode: Decoding, runner: Any, told: Callable[[], list[Any]]
) -> tuple[list[float], list[float], dict[str, float]]:
    """Time steps by a clock of our own around forward pass and sampling; take the parts of those that were sampled."""
    from benchmarks.layer_shares import KINDS
    from tailspan.agent.device import DeviceTime, Layers

    begins: list[int] = []
    ends: list[int] = []
    forward, sample = runner._model_forward, runner._sample

    def timed_forward(*args: Any, **kwargs: Any) -> Any:
        begins.append(time.perf_counter_ns())
        return forward(*args, **kwargs)

    def timed_sample(*args: Any, **kwargs: Any) -> Any:
        result = sample(*args, **kwargs)
        ends.append(time.perf_counter_ns())
        return result

    told()
    runner._model_forward, runner._sample = timed_forward, timed_sample
    for _ in range(MEASURED_STEPS):
        decode.step()
    del runner._model_forward, runner._sample
    events = told()
    times = [event for event in events if isinstance(event, DeviceTime)]
    layers = {event.number: event for event in events if isinstance(event, Layers)}
    if len(times) != len(begins):
        raise RuntimeError(f"{len(times)} device times of {len(begins)} steps")
    own = {event.number: end - begin for event, begin, end in zip(times, begins, ends, strict=True)}
    totals: defaultdict[str, float] = defaultdict(float)
    for event in layers.values():
        for part, ns in zip(event.parts, event.ns, strict=True):
            totals[part.rpartition("/")[2]] += ns
    whole = sum(totals.values())
    wholes: list[float] = [ns for number, ns in own.items() if number not in layers]
    sums = [sum(event.ns) for event in layers.values()]
    return wholes, sums, {kind: totals[kind] / whole for kind in KINDS}


def profiled(decode: Decoding, runner: Any) -> dict[str, float]:
    """Return the shares by torch.profiler; `whole` is forward pass, logits and sampling."""
    from torch.profiler import record_function

    from benchmarks.layer_shares import profiled_shares

    model = runner.get_model()
    forward, sample, logits = runner._model_forward, runner._sample, model.compute_logits
    whole: list[Any] = []

    def ranged_forward(*args: Any, **kwargs: Any) -> Any:
        whole.append(record_function("whole"))
        whole[-1].__enter__()
        return forward(*args, **kwargs)

    def ranged_sample(*args: Any, **kwargs: Any) -> Any:
        result = sample(*args, **kwargs)
        whole.pop().__exit__(None, None, None)
        return result

    def ranged_logits(*args: Any, **kwargs: Any) -> Any:
        with record_function("lm_head"):
            return logits(*args, **kwargs)

    runner._model_forward, runner._sample, model.compute_logits = ranged_forward, ranged_sample, ranged_logits
    try:
        return profiled_shares(model, decode.step, lambda: None, "cpu", PROFILED_STEPS, with_whole=False)
    finally:
        del runner._model_forward, runner._sample, model.compute_logits


def default_probe(runner: Any, probe: Any) -> Any:
    """Return a probe like the runner's own, at the default budget."""
    from tailspan.device.steps import StepProbe
    from tailspan.layers.governor import Governor
    from tailspan.layers.sampler import LayerSampler

    return StepProbe(probe._timer, LayerSampler(probe._sampler._plan, Governor()))


if __name__ == "__main__":
    main(sys.argv[1])
