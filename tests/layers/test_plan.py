"""The plan of a model: every module in exactly one part, weights counted once, the right decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tailspan.layers.kinds import LAYER_KINDS
from tailspan.layers.parts import OUTSIDE, Part, decode_parts
from tailspan.layers.plan import Plan, plan_of
from tests.layers.architectures import ARCHITECTURES

LLAMA = ("norm", "attention", "mlp", "other")
EXPECTED: dict[str, list[tuple[str, ...]]] = {
    "llama": [LLAMA] * 3,
    "llama, tied": [LLAMA] * 3,
    "qwen2": [LLAMA] * 3,
    "qwen3": [LLAMA] * 3,
    "mistral": [LLAMA] * 3,
    "mixtral": [("norm", "attention", "experts", "other")] * 3,
    "qwen2 moe with a shared expert": [LLAMA] + [("norm", "attention", "experts", "other")] * 2,
    "gemma3": [LLAMA] * 3,
    "gpt2": [LLAMA] * 3,
    "gpt-neox": [LLAMA] * 3,
    "opt": [LLAMA] * 3,
    "phi": [LLAMA] * 3,
    "mamba": [("norm", "mixer", "other")] * 3,
    "jamba": [("norm", "mixer", "mlp", "other"), ("norm", "attention", "experts", "other")] * 2,
    "granite hybrid": [
        ("norm", "mixer", "experts", "other"),
        ("norm", "attention", "experts", "other"),
        ("norm", "mixer", "experts", "other"),
    ],
    "qwen3 next": [
        ("norm", "mixer", "experts", "other"),
        ("norm", "attention", "experts", "other"),
        ("norm", "mixer", "experts", "other"),
    ],
}


def planned(model: Any, sampler: Any = None) -> Plan:
    """Return the plan; fail with the reason if there is none."""
    plan = plan_of(model, sampler)
    assert isinstance(plan, Plan), plan
    return plan


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parts_are_those_of_the_architecture(name: str) -> None:
    """Each layer has the kinds that its architecture has there, and the text tells the same parts."""
    plan = planned(ARCHITECTURES[name]())
    layers = EXPECTED[name]
    inside = [Part(number, kind) for number, kinds in enumerate(layers) for kind in kinds]
    outside = [Part(OUTSIDE, kind) for kind in ("norm", "lm_head", "sampler", "other")]
    assert list(plan.parts) == [Part(OUTSIDE, "embedding"), *inside, *outside]
    assert decode_parts(plan.parts_text) == list(plan.parts)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_module_with_parameters_belongs_to_one_part(name: str) -> None:
    """The owner of each module is one of the parts, of the layer that holds it, and of the kind that its name says."""
    model = ARCHITECTURES[name]()
    plan = planned(model)
    for path, module in model.named_modules():
        owner = plan.owner_of(module)
        assert plan.parts.count(owner) == 1, path
        numbers = [int(piece) for piece in path.split(".") if piece.isdigit()]
        assert owner.layer == (numbers[0] if numbers else OUTSIDE), path
        if module._parameters and owner.layer == OUTSIDE:
            assert owner.kind in ("embedding", "norm", "lm_head"), path
        if module._parameters and owner.layer != OUTSIDE:
            assert owner.kind in LAYER_KINDS, path
            assert owner.kind != "other", path


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_weight_is_counted_once(name: str) -> None:
    """The weights of all parts are those of the model, where tied ones count once."""
    model = ARCHITECTURES[name]()
    plan = planned(model)
    assert sum(plan.parameters) == sum(weight.numel() for weight in model.parameters())


def test_tied_weights_are_of_the_embedding() -> None:
    """An output layer that shares its weight with the embedding is a part of its own without weights."""
    model = ARCHITECTURES["llama, tied"]()
    plan = planned(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert plan.owner_of(model.model.embed_tokens) == Part(OUTSIDE, "embedding")
    assert plan.owner_of(model.lm_head) == Part(OUTSIDE, "lm_head")
    weights = dict(zip(plan.parts, plan.parameters, strict=True))
    assert weights[Part(OUTSIDE, "embedding")] == model.lm_head.weight.numel()
    assert weights[Part(OUTSIDE, "lm_head")] == 0


def test_experts_with_router_and_shared_expert_are_one_part() -> None:
    """All weights of a sparse layer's block, its router and its shared expert included, are in one part, once."""
    model = ARCHITECTURES["qwen2 moe with a shared expert"]()
    plan = planned(model)
    block = model.model.layers[1].mlp
    assert {plan.owner_of(module) for module in block.modules()} == {Part(1, "experts")}
    weights = dict(zip(plan.parts, plan.parameters, strict=True))
    assert weights[Part(1, "experts")] == sum(weight.numel() for weight in block.parameters())


def test_shared_expert_beside_the_experts_belongs_to_them() -> None:
    """Where the shared expert is a neighbour of the block, not in it, it is experts all the same."""
    model = ARCHITECTURES["granite hybrid"]()
    plan = planned(model)
    assert plan.owner_of(model.model.layers[0].shared_mlp) == Part(0, "experts")


def test_timed_calls_do_not_nest_but_in_layers() -> None:
    """No site lies inside another, except in a layer or the model as a whole: nothing is counted twice."""
    for build in ARCHITECTURES.values():
        plan = planned(build())
        inner = [site.owner for site in plan.sites if not site.is_layer and site.owner is not plan.model]
        for owner in inner:
            assert not [other for other in inner if other is not owner and any(other is m for m in owner.modules())]


def test_vision_tower_is_other_even_if_it_is_longer() -> None:
    """Of a model for images and text, the language model's decoder is planned."""
    text = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4}
    vision |= {"image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config)
    plan = planned(model)
    assert {part.layer for part in plan.parts} == {OUTSIDE, 0, 1}
    tower = [module for path, module in model.named_modules() if "vision_tower" in path or "projector" in path]
    assert {plan.owner_of(module) for module in tower} == {Part(OUTSIDE, "other")}


def test_decoder_is_preferred_to_a_longer_encoder() -> None:
    """Of an encoder-decoder model the decoder is planned."""
    config = transformers.BartConfig(
        vocab_size=96, d_model=32, encoder_layers=4, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config)
    plan = planned(model)
    assert plan.owner_of(model.model.decoder.layers[1].fc1) == Part(1, "mlp")
    assert plan.owner_of(model.model.encoder.layers[0].fc1) == Part(OUTSIDE, "other")


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(8)
        self.attn = nn.Linear(8, 8)
        self.mlp = nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)})
        self.gain = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["down"](self.mlp["up"](x)) * self.gain(x)


class _Missing(nn.Identity):
    """As vLLM puts it where another rank has the layer."""


class _HandMade(nn.Module):
    """As people write it by hand, or vLLM: logits come from a method, and other ranks have the first layers."""

    def __init__(self, missing: int = 0) -> None:
        super().__init__()
        self.wte = nn.Embedding(16, 8)
        self.h = nn.ModuleList([*(_Missing() for _ in range(missing)), _Block(), _Block()])
        self.ln_f = nn.LayerNorm(8)
        self.lm_head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        result: torch.Tensor = self.ln_f(x)
        return result

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden, self.lm_head.weight)


def test_hand_made_model_has_a_plan() -> None:
    """Bare layers are told by their names, one that says nothing is `other` of its layer, a method can be a site."""
    model = _HandMade()
    plan = planned(model)
    assert plan.parts_text == "embedding|0-1:norm,attention,mlp,other|norm|lm_head|sampler|other"
    assert plan.owner_of(model.h[1].mlp["down"]) == Part(1, "mlp")
    assert plan.owner_of(model.h[1].gain) == Part(1, "other")
    assert ("compute_logits", Part(OUTSIDE, "lm_head")) in [(s.method, plan.parts[s.part]) for s in plan.sites]


def test_layers_of_other_ranks_leave_the_numbers_as_they_are() -> None:
    """A pipeline-parallel rank that has the last layers gives them the numbers that they have in the model."""
    plan = planned(_HandMade(missing=2))
    assert sorted({part.layer for part in plan.parts}) == [OUTSIDE, 2, 3]


def test_module_in_two_layers_belongs_to_the_first() -> None:
    """A layer that is used twice, or shares its attention with another, is not planned twice."""
    model = _HandMade()
    model.h[1].attn = model.h[0].attn
    model.h.append(model.h[0])
    plan = planned(model)
    assert plan.owner_of(model.h[1].attn) == Part(0, "attention")
    owners = [id(site.owner) for site in plan.sites if site.owner is not model]
    assert len(owners) == len(set(owners))
    assert sum(plan.parameters) == sum(weight.numel() for weight in model.parameters())


def test_sampler_of_the_engine_is_a_part() -> None:
    """An engine's own sampling module feeds the part `sampler`."""
    sampler = nn.Softmax(dim=-1)
    plan = planned(_HandMade(), sampler)
    assert plan.has_sampler
    assert [plan.parts[site.part] for site in plan.sites if site.owner is sampler] == [Part(OUTSIDE, "sampler")]


def test_sampler_that_is_no_module_is_left_out() -> None:
    """A sampler that is called in another way than a module's is not planned, rather than failing later."""
    assert not planned(_HandMade(), lambda logits: logits).has_sampler


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), object(), None])
def test_without_decoder_layers_there_is_a_reason(model: Any) -> None:
    """What has no list of layers gives a sentence that names it, never an exception."""
    reason = plan_of(model)
    assert isinstance(reason, str)
    assert type(model).__name__ in reason


def test_experts_are_not_taken_for_layers() -> None:
    """A list of experts that is longer than that of the layers is not the decoder."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    model = _HandMade()
    model.h[0].moe = nn.Module()
    model.h[0].moe.experts = nn.ModuleList(Experts() for _ in range(9))
    assert {part.layer for part in planned(model).parts} == {OUTSIDE, 0, 1}
