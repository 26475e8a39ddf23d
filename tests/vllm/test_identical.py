"""vLLM gives the same tokens with tailspan as without it."""

from __future__ import annotations

import pytest

from tailspan import attributes as attr
from tests.vllm.conftest import RunOffline
from tests.vllm.traced import IMPORTABLE, traced

BODY = """
import random
words = ["river", "mountain", "engine", "tensor", "cache", "window", "bridge", "market", "garden", "signal"]
chooser = random.Random(11)
prompts, params = [], []
for number in range(12):
    # On a CPU, vLLM 0.32 dies of a prompt in chunks that has a seed: only greedy ones are long.
    size = chooser.choice([20, 100] if number % 3 == 1 else [3, 20])
    text = " ".join(chooser.choice(words) for _ in range(size))
    prompts.append({"prompt_token_ids": llm.get_tokenizer().encode(text)})
    length = chooser.choice([20, 45])
    if number % 3 == 0:
        params.append(SamplingParams(temperature=0.9, top_p=0.9, seed=number, max_tokens=length, ignore_eos=True))
    elif number % 3 == 1:
        params.append(SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True))
    else:
        params.append(SamplingParams(temperature=1.0, seed=number, max_tokens=length, n=2, stop=[" the"]))
found = llm.generate(prompts, params, use_tqdm=False)
return [[list(one.token_ids) for one in request.outputs] for request in found]
"""


@pytest.mark.parametrize("processes", [False, True], ids=["one-process", "spawned"])
def test_the_same_tokens(offline: RunOffline, processes: bool) -> None:
    """Greedy and with fixed seeds, in mixed batches that are prefilled in chunks and evicted for want of room."""
    sizes = {"max_num_seqs": 6, "max_num_batched_tokens": 1024, "long_prefill_token_threshold": 96}
    room = {"block_size": 32, "num_gpu_blocks_override": 12, "max_model_len": 256}
    runs = [
        offline(BODY, processes=processes, TAILSPAN_ENABLED=enabled, **sizes, **room, **IMPORTABLE)
        for enabled in ("1", "0")
    ]
    with_us, without = runs
    assert with_us.value == without.value
    assert len({str(tokens) for tokens in with_us.value}) == 12, "as many answers as prompts"
    assert without.spans == []
    found = traced(with_us.spans)
    for request in found:
        request.check()
    for number, (request, outputs) in enumerate(zip(found, with_us.value, strict=True)):
        surplus = request[attr.GEN_AI_OUTPUT_TOKENS] - sum(len(tokens) for tokens in outputs)
        # An engine core of its own goes on until it hears of the stop string.
        assert surplus == 0 or (processes and number % 3 == 2 and surplus > 0)
    assert any("preempted" in request.names for request in found)
    chunks = [request.stage("prefill", attr.PREFILL_CHUNKS) for request in found]
    assert max(chunks) > 1
