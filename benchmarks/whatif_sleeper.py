"""Runs an engine whose device is a clock: transformers' continuous batching, in which computing a step is a sleep.

In: a JSON object on standard input: `requests` [[at_s, prompt_tokens, output_tokens]], `max_batch`, `max_tokens`.
Out: the time at which the load began, ns since 1970, after a request that warms the engine up.
The scheduler, the cache and the loop are the real ones; the model is a tiny one, and each step lasts `step_s` of it.
So a run takes the same time whatever else runs on the machine, and a prediction can be held against it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

BASE_S, DECODE_S, TOKEN_S = 0.020, 0.0015, 0.00025
PAGE_TOKENS = 64


def step_s(prefill_tokens: int, decodes: int) -> float:
    """Return how long a step of so many tokens lasts."""
    return BASE_S + DECODE_S * decodes + TOKEN_S * prefill_tokens


def tiny_model() -> Any:
    """Return a model of one layer with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=4096,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config).eval()


def sleeping(processor_class: Any) -> None:
    """Make every step of the engine last as long as it should."""
    usual = processor_class._generation_step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin_s = time.monotonic()
        sizes = [future.query_length for future in self.inputs_and_outputs.requests_in_batch]
        result = usual(self, *args, **kwargs)
        decodes = sum(size == 1 for size in sizes)
        time.sleep(max(0.0, step_s(sum(sizes) - decodes, decodes) - (time.monotonic() - begin_s)))
        return result

    processor_class._generation_step = step


def main() -> int:
    """Serve the load of standard input."""
    job = json.load(sys.stdin)
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

    sleeping(ContinuousBatchProcessor)
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=8)
    batching = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=4096 // PAGE_TOKENS * 16, max_batch_tokens=job["max_tokens"],
        max_requests_per_batch=job["max_batch"], use_cuda_graph=False, use_async_batching=False,
        allow_block_sharing=False,
    )  # fmt: skip
    with tiny_model().continuous_batching_context_manager(generation, continuous_batching_config=batching) as manager:
        serve(manager, [[0.0, 8, 4]])
        print(time.time_ns(), flush=True)
        serve(manager, job["requests"])
    return 0


def serve(manager: Any, requests: list[list[float]]) -> None:
    """Send requests at their times and wait for the last answer."""
    begin_s = time.monotonic()
    for at_s, prompt, output in requests:
        time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
        manager.add_request([number % 60 + 2 for number in range(int(prompt))], max_new_tokens=int(output))
    left = len(requests)
    for result in manager:
        left -= result.is_finished()
        if not left:
            break


if __name__ == "__main__":
    sys.exit(main())
