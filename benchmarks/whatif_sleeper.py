"""Runs an engine whose device is a clock: transformers' continuous batching, in which computing a step is a sleep.

In: a JSON object on standard input: `requests` [[at_s, prompt_tokens, output_tokens]], `max_batch`, `max_tokens`.
Out: a JSON object: `since_ns`, when the load began, since 1970, after a request that warms the engine up; `late_ratio`,
by which share of its time a step ended too late, in the mean.
The scheduler, the cache and the loop are the real ones; the model is a tiny one, and each step lasts `step_s` of it. A
step sleeps until its deadline, and the next one's counts from there, not from when it woke up: what the loop or another
program took is taken from the next sleep, so that a run takes the same time whatever else runs on the machine, as long
as that is less than the steps themselves.
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


class Clock:
    """When each step should end: when the work began, and what the steps since then take."""

    def __init__(self) -> None:
        self.due_s: float | None = None
        self.late_s = self.meant_s = 0.0

    def idle(self) -> None:
        """There is nothing to do: the next step begins when it begins."""
        self.due_s = None

    def wait(self, begin_s: float, takes_s: float) -> None:
        """Sleep until a step that began at `begin_s` should end."""
        self.due_s = (begin_s if self.due_s is None else self.due_s) + takes_s
        time.sleep(max(0.0, self.due_s - time.monotonic()))
        self.late_s += time.monotonic() - self.due_s
        self.meant_s += takes_s


def sleeping(processor_class: Any, clock: Clock) -> None:
    """Make every step of the engine end when it should."""
    usual_step, usual_batch = processor_class._generation_step, processor_class.prepare_next_batch

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin_s = time.monotonic()
        sizes = [future.query_length for future in self.inputs_and_outputs.requests_in_batch]
        result = usual_step(self, *args, **kwargs)
        decodes = sum(size == 1 for size in sizes)
        clock.wait(begin_s, step_s(sum(sizes) - decodes, decodes))
        return result

    def prepare(self: Any) -> bool:
        is_busy: bool = usual_batch(self)
        if not is_busy:
            clock.idle()
        return is_busy

    processor_class._generation_step, processor_class.prepare_next_batch = step, prepare


def main() -> int:
    """Serve the load of standard input."""
    job = json.load(sys.stdin)
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

    clock = Clock()
    sleeping(ContinuousBatchProcessor, clock)
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=8)
    batching = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=4096 // PAGE_TOKENS * 16, max_batch_tokens=job["max_tokens"],
        max_requests_per_batch=job["max_batch"], use_cuda_graph=False, use_async_batching=False,
        allow_block_sharing=False,
    )  # fmt: skip
    with tiny_model().continuous_batching_context_manager(generation, continuous_batching_config=batching) as manager:
        serve(manager, [[0.0, 8, 4]])
        clock.late_s = clock.meant_s = 0.0
        since_ns = time.time_ns()
        serve(manager, job["requests"])
        print(json.dumps({"since_ns": since_ns, "late_ratio": clock.late_s / clock.meant_s}), flush=True)
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
