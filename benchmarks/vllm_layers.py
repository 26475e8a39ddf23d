"""Layer timings in vLLM for `bench_layers`, in the environment that has it: `python -m benchmarks.vllm_layers`.

In: model folder. Out: one line of JSON: `closure` (parts of sampled decode steps / time of the steps beside them by
another clock), `ours` and `theirs` (shares by samples and by torch.profiler), `sampled` and `others` (CPU time of steps
/ that of those beside them).
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
MEASURED_STEPS = 160


def main(model: str) -> None:
    """Run all measurements."""
    os.environ.update(MACHINE)
    os.environ["TAILSPAN_LAYER_BUDGET"] = "50"
    from vllm import LLM

    from benchmarks.bench_layers import NotingProbe, in_turn
    from benchmarks.gpu_check import recorder
    from tailspan.engines import vllm
    from tailspan.layers.governor import Governor
    from tailspan.layers.sampler import LayerSampler

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
        closure, ours = measured(decode, runner, told)
        run = runner.tailspan_run
        probe, run.probe = run.probe, None
        theirs = profiled(decode, runner)
        probe = NotingProbe(probe._timer, LayerSampler(probe._sampler._plan, Governor()))

        def step(_: int, is_on: bool) -> bool:
            run.probe = probe if is_on else None
            decode.step()
            return is_on and probe.is_sampled

        sampled, others = in_turn(step)
    found = {"closure": closure, "ours": ours, "theirs": theirs, "sampled": sampled, "others": others}
    print(json.dumps(found))


class Decoding:
    """A batch that decodes; when its answers are long enough, the same prompts begin anew."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._number = 0

    def restart(self) -> None:
        """Begin the prompts anew: sequences as short as at first, since attention takes longer with their length."""
        self._engine.abort_request([str(self._number - other) for other in range(BATCH)])

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


def measured(decode: Decoding, runner: Any, told: Callable[[], list[Any]]) -> tuple[list[float], dict[str, float]]:
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

    decode.restart()
    decode.step()
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
    closure = [
        2 * sum(event.ns) / (own[number - 1] + own[number + 1])
        for number, event in layers.items()
        if {number - 1, number + 1} <= own.keys() - layers.keys()
    ]
    return closure, {kind: totals[kind] / whole for kind in KINDS}


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

    decode.restart()
    decode.step()
    runner._model_forward, runner._sample, model.compute_logits = ranged_forward, ranged_sample, ranged_logits
    try:
        return profiled_shares(model, decode.step, lambda: None, "cpu", MEASURED_STEPS, with_whole=False)
    finally:
        del runner._model_forward, runner._sample, model.compute_logits


if __name__ == "__main__":
    main(sys.argv[1])
