"""Rounds of vLLM for `engine_rounds`, in a process of the environment that has it: `python -m benchmarks.vllm_rounds`.

In: model folder, OTLP endpoint, seconds, rounds for the hooks' own time. Out: one line of JSON with both results.
Engine core and model run in this process, so that one clock sees all of the CPU time; prompts are text, tokens come
one by one as for a stream.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

MACHINE = {
    "TAILSPAN_ENABLED": "0",  # the plugin stays out: rounds switch tracing on and off
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def main(model: str, endpoint: str, seconds: float, hook_rounds: int) -> None:
    """Run both measurements."""
    os.environ.update(MACHINE)
    from vllm import LLM

    from benchmarks.engine_rounds import BATCH, compare, hook_share
    from tailspan.engines import vllm

    engine = LLM(
        model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=BATCH, max_num_batched_tokens=512,
        enable_prefix_caching=False,
    ).llm_engine  # fmt: skip
    targets = vllm.patcher().targets
    pairs = compare(lambda: _round(engine), targets, endpoint, seconds)
    hooks = hook_share(lambda: _round(engine), targets, endpoint, hook_rounds)
    print(json.dumps({"pairs": [asdict(pair) for pair in pairs], "hooks": hooks}))


def _round(engine: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from benchmarks.engine_rounds import BATCH, NEW_TOKENS, PROMPT_TOKENS, SETTLE_S, Round

    params = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )  # fmt: skip
    last_s: dict[str, float] = {}
    gaps_s: list[float] = []
    cpu_s, begin_s = time.process_time(), time.perf_counter()
    for number in range(BATCH):
        engine.add_request(str(number), f"{number} " * (PROMPT_TOKENS // 2), params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now_s = time.perf_counter()
        for output in outputs:
            before_s = last_s.get(output.request_id)
            if before_s is not None:
                gaps_s.append(now_s - before_s)
            last_s[output.request_id] = now_s
    done = Round(time.perf_counter() - begin_s, time.process_time() - cpu_s, tuple(gaps_s))
    time.sleep(SETTLE_S)
    return done


if __name__ == "__main__":
    folder, address, wanted_s, rounds = sys.argv[1:]
    main(folder, address, float(wanted_s), int(rounds))
