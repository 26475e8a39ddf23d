"""What only some engines do: preemption, asynchronous scheduling, LoRA, pooling models and speculative decoding."""

from __future__ import annotations

import pytest

from tailspan import attributes as attr
from tests.support.otlp_sink import attributes_of
from tests.vllm.conftest import RunOffline
from tests.vllm.running import Offline
from tests.vllm.traced import IMPORTABLE, Traced, one, steps_of, traced

LATE_NS = 50_000_000
"""How much later than the scheduler a script may look at the clock, on a busy machine."""

BODY = """
import gc
from pathlib import Path
import torch
from safetensors.torch import save_file
from tests.vllm.ahead import schedule_ahead
from tests.vllm.cases import case, left_over
from vllm.lora.request import LoRARequest

value = {"left over": []}
quiet = {"use_tqdm": False}
sizes = {name: options[name] for name in ("dtype", "enforce_eager", "max_model_len", "max_num_seqs")}

def answer(**more):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **more})

def prompts(count, length):
    return [{"prompt_token_ids": list(range(1000 + 100 * n, 1000 + 100 * n + length))} for n in range(count)]

with case("preempted"):
    found = llm.generate(prompts(4, 60), answer(max_tokens=60), priority=[3, 2, 1, 0], **quiet)
    value["preempted"] = [len(one.outputs[0].token_ids) for one in found]
with case("embedded"):
    llm.generate([{"prompt_embeds": torch.randn(12, 576)}], answer(), **quiet)
value["left over"].append(left_over(llm.llm_engine))
with case("ahead"):
    value["ahead"], left = schedule_ahead(llm, prompts(4, 60), answer(max_tokens=60))
value["left over"].append(left)
del llm
gc.collect()

folder = Path("adapter")
folder.mkdir()
config = json.loads(Path(model, "config.json").read_text())
width, shapes = config["hidden_size"], {"A": (8, config["hidden_size"]), "B": (config["hidden_size"], 8)}
torch.manual_seed(0)
weights = {
    f"base_model.model.model.layers.{n}.self_attn.q_proj.lora_{part}.weight": torch.randn(*shape) * 0.02
    for n in range(config["num_hidden_layers"]) for part, shape in shapes.items()
}
save_file(weights, folder / "adapter_model.safetensors")
about = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
(folder / "adapter_config.json").write_text(json.dumps({**about, "task_type": "CAUSAL_LM"}))
llm = LLM(model=model, enable_lora=True, max_lora_rank=8, **sizes)
poet = LoRARequest("poet", 1, str(folder.resolve()))
with case("lora"):
    llm.generate(["Once", "Once"], answer(), lora_request=[poet, None], **quiet)
value["left over"].append(left_over(llm.llm_engine))
del llm
gc.collect()

llm = LLM(model=model, runner="pooling", convert="embed", **sizes)
with case("embed"):
    found = llm.embed(["One", "Two and more"], **quiet)
    value["embed"] = [len(one.outputs.embedding) for one in found]
with case("encode"):
    (found,) = llm.encode(["One " * 40], pooling_task="embed", **quiet)
    value["encode"] = [len(found.prompt_token_ids), *found.outputs.data.shape]
value["left over"].append(left_over(llm.llm_engine))
del llm
gc.collect()

# The last one: an engine after it does not start in this process (vLLM 0.32).
ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
llm = LLM(model=model, speculative_config=ngram, **sizes)
with case("speculative"):
    llm.generate(["one two three one two three one two three one two"], answer(max_tokens=24), **quiet)
value["left over"].append(left_over(llm.llm_engine))
return value
"""


@pytest.fixture(scope="module")
def done(offline: RunOffline) -> Offline:
    """Four engines, one after the other in one process; the first has room for 11 blocks of 32 tokens."""
    sizes = {"max_num_seqs": 4, "max_model_len": 256, "block_size": 32, "num_gpu_blocks_override": 11}
    return offline(BODY, enable_prompt_embeds=True, scheduling_policy="priority", **sizes, **IMPORTABLE)


def engine_steps(done: Offline, request: Traced) -> list[dict[str, object]]:
    """Return the steps of the engine that ran a request."""
    return [step for step in steps_of(done.spans) if step[attr.ENGINE_ID] == request[attr.ENGINE_ID]]


def test_all_of_every_request_is_explained(done: Offline) -> None:
    """Stages follow each other, lie inside the request, and leave at most 1 % of it; nothing is kept in the end."""
    found = [request for request in traced(done.spans) if request[attr.OUTCOME] == "ok"]
    assert len(found) == 4 + 1 + 4 + 2 + 3 + 1
    for request in found:
        request.check()
    assert done.value["left over"] == [{}] * 5


def test_preemption(done: Offline) -> None:
    """Four prompts whose answers do not fit: the least urgent are evicted, wait, and compute what they had again."""
    found = traced(done.spans, "preempted")
    assert [request[attr.GEN_AI_OUTPUT_TOKENS] for request in found] == done.value["preempted"] == [60] * 4
    evicted = [request for request in found if "preempted" in request.names]
    assert found[0] in evicted
    assert found[3] not in evicted
    for request in evicted:
        at = request.names.index("preempted")
        assert request.names[at - 1 : at + 2] == ["decode", "preempted", "decode"]
        assert request.ms("preempted") > 0
        # Recomputed tokens are no chunks of the prompt.
        assert request.stage("prefill", attr.PREFILL_CHUNKS) == 1
    steps = engine_steps(done, found[0])
    assert sum(int(str(step[attr.STEP_PREEMPTED])) for step in steps) == sum(r.names.count("preempted") for r in found)
    computed = sum(int(str(step[attr.STEP_PREFILL_TOKENS])) for step in steps)
    assert computed > 4 * 60, "the prompts, and what was lost"


def test_steps_that_are_planned_ahead(done: Offline) -> None:
    """vLLM's asynchronous scheduler, a step ahead of its tokens and short of room: every token is where it came."""
    found = traced(done.spans, "ahead")
    delivered = done.value["ahead"]
    assert [request[attr.GEN_AI_OUTPUT_TOKENS] for request in found] == [len(one) for one in delivered]
    assert any("preempted" in request.names for request in found)
    for request, times in zip(found, delivered, strict=True):
        first = next(stage for stage in request.stages if stage.name == "decode").start_time_unix_nano
        assert 0 <= times[0] - (first - request.root.start_time_unix_nano) < LATE_NS
        last = [stage for stage in request.stages if stage.name == "decode"][-1]
        gaps = attributes_of(last.attributes)[attr.ITL_HISTOGRAM].split()
        assert sum(int(part.partition(":")[2]) for part in gaps) == len(times) - 1


def test_a_prompt_that_is_embedded_already(done: Offline) -> None:
    """It has no token ids and is traced as any other."""
    request = one(done, "embedded")
    assert (request[attr.GEN_AI_INPUT_TOKENS], request[attr.GEN_AI_OUTPUT_TOKENS]) == (12, 8)
    assert request.names[1:] == ["dispatch", "queue", "prefill", "decode", "detokenize", "respond"]


def test_lora(done: Offline) -> None:
    """The request with an adapter names it, the one without does not."""
    assert [request.attributes.get(attr.LORA) for request in traced(done.spans, "lora")] == ["poet", None]


def test_pooling(done: Offline) -> None:
    """An embedding is a prefill and nothing after it, without output tokens."""
    assert done.value["embed"] == [576, 576]
    found = [*traced(done.spans, "embed"), one(done, "encode")]
    for request in found:
        assert request[attr.GEN_AI_OPERATION] == "embeddings"
        assert attr.GEN_AI_OUTPUT_TOKENS not in request.attributes
        assert "decode" not in request.names
        assert request.names[:4] == ["tokenize", "dispatch", "queue", "prefill"]
    assert found[-1][attr.GEN_AI_INPUT_TOKENS] == done.value["encode"][0]


def test_speculative_decoding(done: Offline) -> None:
    """A repetitive prompt is guessed well: fewer steps than tokens, and the request says how good the drafts were."""
    request = one(done, "speculative")
    assert request[attr.GEN_AI_OUTPUT_TOKENS] == 24
    assert request[attr.DRAFT_TOKENS] >= request[attr.ACCEPTED_TOKENS] > 0
    assert len(engine_steps(done, request)) <= 24 - request[attr.ACCEPTED_TOKENS] + 1
