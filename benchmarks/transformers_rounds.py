"""Rounds of transformers continuous batching for `engine_rounds`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.engine_rounds import BATCH, NEW_TOKENS, PROMPT_TOKENS, SETTLE_S, Round, RunRound


@contextmanager
def rounds(model: Any) -> Iterator[RunRound]:
    """Give a function that runs a round on a manager of its own."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(
        page_size=64, num_blocks=32, max_batch_tokens=256, use_cuda_graph=False, use_async_batching=False
    )
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching) as manager:
        yield lambda: _round(manager)


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
