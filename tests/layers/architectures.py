"""Small models of many architectures, with random weights, from transformers' own configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

VOCABULARY = 96
_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _model(name: str, **options: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(**options)
    torch.manual_seed(0)
    suffix = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    name = name.removesuffix("Text")
    return getattr(transformers, name + suffix)(config).eval()


def _small(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: _model(name, **(_SMALL | options))


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": _small("Llama"),
    "llama, tied": _small("Llama", tie_word_embeddings=True),
    "qwen2": _small("Qwen2"),
    "qwen3": _small("Qwen3", head_dim=8),
    "mistral": _small("Mistral"),
    "mixtral": _small("Mixtral", num_local_experts=4),
    "qwen2 moe with a shared expert": _small(
        "Qwen2Moe", num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16, mlp_only_layers=[0]
    ),
    "gemma3": _small("Gemma3Text", head_dim=8, sliding_window=16),
    "gpt2": lambda: _model("GPT2", vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=128),
    "gpt-neox": _small("GPTNeoX"),
    "opt": _small("OPT", ffn_dim=64, word_embed_proj_dim=32),
    "phi": _small("Phi"),
    "mamba": _small("Mamba", state_size=4),
    "jamba": _small(
        "Jamba",
        num_hidden_layers=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "granite hybrid": _small(
        "GraniteMoeHybrid",
        layers_block_type=["mamba", "attention", "mamba"],
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=4,
        shared_intermediate_size=32,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
    "qwen3 next": _small(
        "Qwen3Next",
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
}


def tokens(count: int = 12) -> torch.Tensor:
    """Return a prompt, shape (1, count)."""
    return (torch.arange(count) * 7 % (VOCABULARY - 3) + 3)[None]
